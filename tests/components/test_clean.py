"""`topr clean` on a toy experiment: what goes, what stays, and when it is refused."""

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from filelock import FileLock

from topr_pipeline.components import experiment_assets
from topr_pipeline.components.clean import clean
from topr_pipeline.components.graph import unroll
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Experiment
from topr_pipeline.testing import FakeModels


def experiment(**sampling: Any) -> Experiment:
    return Experiment.model_validate(
        {
            "iterations": 1,
            "policy": {"source": "tiny"},
            "prompts": {"source": "word_problems", "count": 4},
            "eval_prompts": {"source": "word_problems", "count": 2},
            "sampling": {"engine": "fake", "samples_per_prompt": 4, **sampling},
            "mix": {"min_positives": 0, "min_negatives": 0},
            "evaluation": {"samples_per_prompt": 2},
        }
    )


def make(root: Path, e: Experiment) -> None:
    resources = {"models": FakeModels(), "data": str(root)}
    assets = experiment_assets("toy", e, root)
    instance = dg.DagsterInstance.ephemeral()
    assert dg.materialize(assets, resources=resources, instance=instance).success


def cleaned(root: Path, e: Experiment, dry_run: bool = False) -> list[tuple[str, int]]:
    found = clean("toy", unroll("toy", e, root), e, root, dry_run)
    return [(str(leftover.path.relative_to(root / "toy")), leftover.size) for leftover in found]


def files(root: Path) -> set[Path]:
    return {p for p in (root / "toy").rglob("*") if p.is_file() and p.suffix != ".lock"}


def test_nothing_that_the_experiment_still_uses_goes(tmp_path: Path):
    make(tmp_path, experiment())
    before = files(tmp_path)
    assert len(list((tmp_path / "toy/samples").iterdir())) == 3  # two evaluations, an iteration
    assert cleaned(tmp_path, experiment()) == []
    assert cleaned(tmp_path, experiment(samples_per_prompt=2, batch_size=1, shards=2)) == []
    assert files(tmp_path) == before


@pytest.mark.parametrize("made", [True, False])
def test_states_go_but_for_those_that_a_training_would_go_on_from(tmp_path: Path, made: bool):
    make(tmp_path, experiment())
    for state in ("iter_01/.checkpoint.state", "iter_02/.checkpoint.state"):
        (tmp_path / "toy" / state / "f00d/checkpoint-3").mkdir(parents=True)
    if not made:
        (tmp_path / "toy/iter_01/checkpoint.json").unlink()
    gone = [path for path, _ in cleaned(tmp_path, experiment()) if path.endswith(".state")]
    kept = [] if made else ["iter_01/.checkpoint.state"]
    assert gone == sorted({"iter_01/.checkpoint.state", "iter_02/.checkpoint.state"} - set(kept))


def test_the_state_of_a_training_on_a_mix_that_was_made_again_stays(tmp_path: Path):
    make(tmp_path, experiment())
    (tmp_path / "toy/iter_01/.checkpoint.state/f00d").mkdir(parents=True)
    manifest = tmp_path / "toy/iter_01/mix.json"
    said = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**said, "data_version": "another"}))
    assert [p for p, _ in cleaned(tmp_path, experiment()) if p.endswith(".state")] == []


def test_sets_of_an_earlier_configuration_go_and_artifacts_stay(tmp_path: Path):
    make(tmp_path, experiment())
    old = {p.name for p in (tmp_path / "toy/samples").iterdir()}
    changed = experiment(max_tokens=9)
    make(tmp_path, changed)
    before = files(tmp_path)
    found = cleaned(tmp_path, changed, dry_run=True)
    assert {path for path, _ in found} == {f"samples/{name}" for name in old}
    assert all(size > 1000 for _, size in found)
    assert files(tmp_path) == before
    assert cleaned(tmp_path, changed) == found
    assert {p for p in before if p.parent.name not in old} == files(tmp_path)
    assert cleaned(tmp_path, changed) == []


def test_what_killed_writers_left_goes(tmp_path: Path):
    make(tmp_path, experiment())
    before = files(tmp_path)
    folder = tmp_path / "toy/iter_01/.checkpoint.01234567.tmp"
    folder.mkdir()
    (folder / ".model.89abcdef.tmp").write_bytes(b"x" * 7)
    shard = next((tmp_path / "toy/samples").iterdir()) / ".a.parquet.01234567.tmp"
    shard.write_bytes(b"x" * 5)
    assert {size for _, size in cleaned(tmp_path, experiment())} == {7, 5}
    assert files(tmp_path) == before


def test_cleaning_is_refused_while_something_is_made(tmp_path: Path):
    make(tmp_path, experiment())
    with (
        FileLock(tmp_path / "toy/iter_01/.mix.lock"),
        pytest.raises(ToprError, match="toy is being made by another process"),
    ):
        cleaned(tmp_path, experiment(max_tokens=9))


def test_a_set_of_a_policy_that_is_gone_goes(tmp_path: Path):
    make(tmp_path, experiment())
    manifest = tmp_path / "toy/iter_01/checkpoint.json"
    said = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**said, "data_version": "another"}))
    assert len(cleaned(tmp_path, experiment())) == 1
