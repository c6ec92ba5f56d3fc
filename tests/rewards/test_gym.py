import json
import sys
from types import SimpleNamespace

from topr_pipeline.rewards import exact, gym


def test_the_dataset_of_the_entry_scores_and_only_the_full_score_is_right(monkeypatch):
    def scorer(answer, entry):
        return 1.0 if answer == entry["answer"] else 0.01

    fake = SimpleNamespace(get_score_answer_fn=lambda name: {"leg_counting": scorer}[name])
    monkeypatch.setitem(sys.modules, "reasoning_gym", fake)
    gym._entry.cache_clear()
    entry = gym.entry("12", json.dumps({"source_dataset": "leg_counting", "legs": 12}))
    assert gym.gold(entry) == entry
    assert gym.score("12", entry) is True
    assert gym.score("13", entry) is False


def fake(monkeypatch, scorer):
    module = SimpleNamespace(get_score_answer_fn=lambda name: {"grids": scorer}[name])
    monkeypatch.setitem(sys.modules, "reasoning_gym", module)
    gym._entry.cache_clear()


def test_an_answer_that_makes_the_scorer_raise_is_wrong(monkeypatch):
    fake(monkeypatch, lambda answer, entry: float(int(answer) == int(entry["answer"])))
    entry = gym.entry("12", json.dumps({"source_dataset": "grids"}))
    assert gym.score("12", entry) is True
    assert gym.score("definitely not it", entry) is False


def test_an_entry_whose_own_answer_is_not_right_cannot_be_verified(monkeypatch):
    fake(monkeypatch, lambda answer, entry: 0.5)
    assert gym.score("12", gym.entry("12", json.dumps({"source_dataset": "grids"}))) == (
        "unverifiable"
    )


def test_metadata_is_tried_with_tuples_as_json_has_none(monkeypatch):
    fake(monkeypatch, lambda answer, entry: float(entry["metadata"]["output"] == ((1, 2),)))
    entry = gym.entry("1 2", json.dumps({"source_dataset": "grids", "output": [[1, 2]]}))
    assert gym.score("1 2", entry) is True


def test_lines_of_an_answer_are_kept():
    assert exact.stated("So:\n<answer>1 2\n3 4</answer>") == "1 2\n3 4"


def test_a_prompt_that_names_no_dataset_cannot_be_verified():
    for meta in (None, "", "{}", "not json", "[1]", '{"legs": 12}'):
        assert gym.gold(gym.entry("12", meta)) is None


def test_metadata_may_lie_under_its_own_key():
    meta = json.dumps({"metadata": {"source_dataset": "leg_counting"}})
    assert json.loads(gym.entry("1", meta))["metadata"] == {"source_dataset": "leg_counting"}
