import json
import sys
from types import SimpleNamespace

from topr_pipeline.rewards import gym


def test_the_dataset_of_the_entry_scores_and_only_the_full_score_is_right(monkeypatch):
    def scorer(answer, entry):
        return 1.0 if answer == entry["answer"] else 0.01

    fake = SimpleNamespace(get_score_answer_fn=lambda name: {"leg_counting": scorer}[name])
    monkeypatch.setitem(sys.modules, "reasoning_gym", fake)
    entry = gym.entry("12", json.dumps({"source_dataset": "leg_counting", "legs": 12}))
    assert gym.gold(entry) == entry
    assert gym.score("12", entry) is True
    assert gym.score("13", entry) is False


def test_a_prompt_that_names_no_dataset_cannot_be_verified():
    for meta in (None, "", "{}", "not json", "[1]", '{"legs": 12}'):
        assert gym.gold(gym.entry("12", meta)) is None


def test_metadata_may_lie_under_its_own_key():
    meta = json.dumps({"metadata": {"source_dataset": "leg_counting"}})
    assert json.loads(gym.entry("1", meta))["metadata"] == {"source_dataset": "leg_counting"}
