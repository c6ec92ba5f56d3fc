import os
from pathlib import Path
from typing import Any

import pytest

from topr_pipeline.components.graph import unroll
from topr_pipeline.experiment import Experiment

ROOT = Path("nowhere")


def experiment(**changes: Any) -> Experiment:
    """A small experiment; `mix__baseline=0.1` sets the key `mix.baseline`."""
    said: dict[str, Any] = {
        "iterations": 2,
        "policy": {"source": "tiny"},
        "prompts": {"source": "word_problems", "count": 8},
        "eval_prompts": {"source": "word_problems", "count": 4},
    }
    for path, value in changes.items():
        section, _, key = path.rpartition("__")
        (said.setdefault(section, {}) if section else said)[key] = value
    return Experiment.model_validate(said)


def versions(e: Experiment) -> dict[str, str]:
    return {key: node.code_version for key, node in unroll("toy", e, ROOT).items()}


def test_an_experiment_unrolls_into_one_node_per_artifact_parents_first():
    nodes = unroll("toy", experiment(), ROOT)
    assert list(nodes) == [
        "toy/prompts",
        "toy/eval_prompts",
        "toy/iter_00/checkpoint",
        "toy/iter_00/eval_scores",
        *(
            f"toy/iter_0{k}/{stage}"
            for k in (1, 2)
            for stage in ("solutions", "rewards", "mix", "checkpoint", "eval_scores")
        ),
        "toy/report",
    ]
    seen: set[str] = set()
    for key, node in nodes.items():
        assert set(node.parents) <= seen
        seen.add(key)
    assert "toy/iter_01/checkpoint" in nodes["toy/iter_02/solutions"].parents


CHANGES = [
    ("prompts__count", 9, {"prompts"}),
    ("eval_prompts__count", 9, {"eval_prompts"}),
    ("policy__layers", 1, {"checkpoint 0"}),
    ("sampling__samples_per_prompt", 4, {"solutions"}),
    ("sampling__temperature", 0.7, {"solutions"}),
    ("top_up", {"samples": 2}, set()),
    ("sampling__max_tokens", 7, {"solutions", "eval_scores"}),
    ("rewards__values", {"invalid": -2}, {"rewards"}),
    ("rewards__limits", {"invalid": 0.5}, set()),
    ("mix__baseline", 0.1, {"mix"}),
    ("mix__min_positives", 3, set()),
    ("training__learning_rate", 1.0, {"checkpoint"}),
    ("training__ratio_limits", [0.5, 2], set()),
    ("evaluation__samples_per_prompt", 4, {"eval_scores"}),
    ("threads", 2, set()),
    ("description", "other", set()),
    ("tags", {"team": "x"}, set()),
    ("iterations", 3, set()),
]


@pytest.mark.parametrize(("key", "value", "stages"), CHANGES, ids=[c[0] for c in CHANGES])
def test_a_changed_key_changes_the_code_version_of_the_stages_that_read_it(key, value, stages):
    before, after = versions(experiment()), versions(experiment(**{key: value}))
    changed = {k for k in before if before[k] != after[k]}
    named = {"checkpoint 0" if k.endswith("00/checkpoint") else k.split("/")[-1] for k in changed}
    assert named == stages


TOP_UPS = [
    ("top_up", {"samples": 2}, {"top_up_solutions"}),
    ("top_up", {"samples": 1, "budget": 9}, {"top_up_solutions"}),
    ("sampling__temperature", 0.7, {"solutions", "top_up_solutions"}),
    ("rewards__values", {"invalid": -2}, {"rewards", "top_up_rewards"}),
    ("mix__baseline", 0.1, {"mix"}),
]


@pytest.mark.parametrize(("key", "value", "stages"), TOP_UPS)
def test_a_top_up_reads_its_own_keys_and_those_of_sampling(key, value, stages):
    said: dict[str, Any] = {"top_up": {"samples": 1}}
    before, after = versions(experiment(**said)), versions(experiment(**{**said, key: value}))
    assert {k.split("/")[-1] for k in before if before[k] != after[k]} == stages


def test_the_seed_changes_everything_that_is_random():
    before, after = versions(experiment()), versions(experiment(seed=1))
    same = {k.split("/")[-1] for k in before if before[k] == after[k]}
    assert same == {"rewards", "mix", "report"}


def test_limits_change_no_code_version_but_are_known_to_the_checks():
    before, after = (
        unroll("toy", e, ROOT)["toy/iter_01/mix"]
        for e in (experiment(), experiment(mix__min_positives=3))
    )
    assert before.code_version == after.code_version
    assert before.limits != after.limits


def test_a_touched_prompt_file_with_the_same_content_changes_nothing(tmp_path: Path):
    e = experiment(prompts={"source": "files", "path": "a.jsonl"})
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "1", "gold": "1"}\n')
    before = unroll("toy", e, tmp_path)["toy/prompts"].code_version
    os.utime(file, (1, 1))
    assert unroll("toy", e, tmp_path)["toy/prompts"].code_version == before


def test_the_users_own_code_is_part_of_what_is_read(tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    e = experiment(rewards__verifier="python: my_verifier_of_a_test:check")
    file = tmp_path / "my_verifier_of_a_test.py"
    file.write_text("def check(completion, gold): return True\n")
    before = unroll("toy", e, ROOT)["toy/iter_01/rewards"].code_version
    file.write_text("def check(completion, gold): return False\n")
    assert unroll("toy", e, ROOT)["toy/iter_01/rewards"].code_version != before


def test_an_edited_prompt_file_changes_the_code_version(tmp_path: Path):
    e = experiment(prompts={"source": "files", "path": "a.jsonl"})
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "1", "gold": "1"}\n')
    before = unroll("toy", e, tmp_path)["toy/prompts"].code_version
    file.write_text('{"prompt": "1", "gold": "12"}\n')
    assert unroll("toy", e, tmp_path)["toy/prompts"].code_version != before
