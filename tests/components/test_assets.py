"""An experiment's assets with mocked models: the pattern for unit tests of one's own assets.

`FakeModels` stands for everything that loads a model; the rest is real: tables, verifier, mix,
scores, report, Dagster. A whole experiment of two iterations takes well under a second.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest

from topr_pipeline.checkpoints.agreement import Agreement
from topr_pipeline.components import experiment_assets
from topr_pipeline.components.manifest import Manifest
from topr_pipeline.components.topr_experiment import FORCE_TAG
from topr_pipeline.experiment import Experiment
from topr_pipeline.testing import FakeModels


def half_right(prompt: str, i: int) -> str:
    """Every other sample of `3 + 1 =` is right."""
    return f"The answer is {int(prompt.split(maxsplit=1)[0]) + 1 + i % 2}"


@dataclass
class Toy:
    """A project folder with a Dagster instance of its own."""

    root: Path
    instance: dg.DagsterInstance
    models: FakeModels

    def experiment(self, **changes: Any) -> Experiment:
        said = {
            "iterations": 2,
            "policy": {"source": "tiny"},
            "prompts": {"source": "files", "path": "train.jsonl"},
            "eval_prompts": {"source": "files", "path": "eval.jsonl"},
            "sampling": {"engine": "fake", "samples_per_prompt": 4},
            "evaluation": {"samples_per_prompt": 4},
        }
        return Experiment.model_validate({**said, **changes})

    def run(self, tags: dict[str, str] | None = None, **changes: Any) -> dg.ExecuteInProcessResult:
        return dg.materialize(
            experiment_assets("toy", self.experiment(**changes), self.root),
            instance=self.instance,
            resources={"models": self.models, "data": str(self.root / "data")},
            raise_on_error=False,
            tags=tags,
        )

    def write(self, name: str, numbers: Iterable[int]) -> None:
        rows = [{"prompt": f"{n} + 1 =", "gold": n + 1} for n in numbers]
        (self.root / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def table(self, key: str) -> pl.DataFrame:
        return pl.read_parquet(self.root / "data" / "toy" / f"{key}.parquet")


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    toy = Toy(tmp_path, dg.DagsterInstance.ephemeral(), FakeModels(half_right))
    toy.write("train.jsonl", range(6))
    toy.write("eval.jsonl", range(10, 14))
    return toy


def remade(result: dg.ExecuteInProcessResult) -> set[str]:
    """Which assets did work in a run, of those that were materialised."""
    return {
        "/".join(event.asset_key.path[1:])
        for event in result.get_asset_materialization_events()
        if event.asset_key and not event.materialization.metadata["reused"].value
    }


ITERATION = ("solutions", "rewards", "mix", "checkpoint", "eval_scores")


def after(key: str) -> set[str]:
    """`iter_01/mix`: itself and everything that is made from it, the report last."""
    iteration, stage = int(key[5:7]), key.split("/")[1]
    keys = {f"iter_{k:02d}/{s}" for k in range(iteration + 1, 3) for s in ITERATION}
    return keys | {f"{key[:7]}/{s}" for s in ITERATION[ITERATION.index(stage) :]} | {"report"}


def failure(result: dg.ExecuteInProcessResult, step: str) -> str:
    data = result.failure_data_for_node(step)
    assert data is not None
    assert data.user_failure_data is not None
    return data.user_failure_data.description or ""


def test_a_whole_experiment_runs_with_mocked_models(toy: Toy):
    result = toy.run()
    assert result.success
    assert toy.models.calls.count("train") == 2
    assert toy.table("iter_02/mix")["advantage"].sort().to_list() == [-1.0] * 12 + [1.0] * 12
    scores = pl.read_parquet(toy.root / "data/toy/iter_02/eval_scores/scores.parquet")
    assert scores.filter(metric="pass@1")["value"].item() == 0.5


def test_a_second_run_makes_nothing_again(toy: Toy):
    toy.run()
    assert remade(toy.run()) == set()


@pytest.mark.parametrize(
    "key",
    [
        "prompts",
        "iter_00/checkpoint",
        "iter_01/mix",
        "iter_02/rewards",
        "iter_01/solutions",
        "iter_01/checkpoint",
        "iter_02/eval_scores",
    ],
)
def test_a_deleted_artifact_is_made_again_the_same_and_nothing_else(toy: Toy, key: str):
    toy.run()
    path = toy.root / "data" / "toy" / key
    for file in [path.with_suffix(".parquet"), *path.glob("*")]:
        file.unlink(missing_ok=True)
    assert remade(toy.run()) == {key}


CHANGES = [
    ({"mix": {"baseline": 0.1}}, after("iter_01/mix")),
    ({"rewards": {"values": {"incorrect": -2}}}, after("iter_01/rewards")),
    ({"evaluation": {"samples_per_prompt": 2}}, {*(f"iter_0{k}/eval_scores" for k in (0, 1, 2))}),
    ({"rewards": {"limits": {"truncated": 0.9}}}, set()),
    ({"description": "another"}, set()),
]


@pytest.mark.parametrize(("change", "expected"), CHANGES, ids=[str(c[0]) for c in CHANGES])
def test_an_edited_key_makes_again_what_depends_on_it(toy: Toy, change, expected):
    toy.run()
    again = remade(toy.run(**change))
    assert again - {"report"} == expected - {"report"}
    assert ("report" in again) == bool(expected)


def test_more_samples_keep_those_that_were_drawn(toy: Toy):
    toy.run()
    before = toy.table("iter_01/solutions")
    toy.run(sampling={"engine": "fake", "samples_per_prompt": 6})
    now = toy.table("iter_01/solutions")
    assert now.height == before.height * 6 // 4
    assert now.filter(pl.col("sample_index") < 4).equals(before)


def test_another_iteration_leaves_the_earlier_ones_alone(toy: Toy):
    toy.run(iterations=1)
    assert remade(toy.run(iterations=2)) == {f"iter_02/{s}" for s in ITERATION} | {"report"}


def test_an_edited_prompt_file_samples_only_its_new_prompts(toy: Toy):
    toy.run()
    toy.write("train.jsonl", range(7))
    toy.models.engines.clear()
    assert remade(toy.run()) >= {"prompts", "iter_01/solutions", "iter_01/mix"}
    assert toy.models.engines[0].generated == 4


def test_a_forced_asset_is_made_again_and_what_it_did_not_change_is_not(toy: Toy):
    toy.run()
    assert remade(toy.run(tags={FORCE_TAG: "toy/iter_01/mix"})) == {"iter_01/mix"}


def test_eval_prompts_among_the_training_prompts_stop_before_any_model(toy: Toy):
    toy.write("eval.jsonl", [3, 20])
    result = toy.run()
    assert not result.success
    assert "train.jsonl:4" in failure(result, "toy__eval_prompts")
    assert toy.models.calls == []


def test_a_missing_prompt_file_stops_before_any_model(toy: Toy):
    (toy.root / "train.jsonl").unlink()
    result = toy.run()
    assert "prompts.path" in failure(result, "toy__prompts")
    assert toy.models.calls == []


def test_an_empty_prompt_file_stops_before_any_model(toy: Toy):
    (toy.root / "train.jsonl").write_text("\n\n")
    assert "holds no prompt" in failure(toy.run(), "toy__prompts")
    assert toy.models.calls == []


ONE_SIDED: list[tuple[Callable[[str, int], str], str]] = [
    (lambda prompt, i: f"The answer is {int(prompt.split(maxsplit=1)[0]) + 1}", "min_negatives"),
    (lambda prompt, i: "The answer is 99", "min_positives"),
]


@pytest.mark.parametrize(("reply", "check"), ONE_SIDED, ids=["all right", "all wrong"])
def test_a_one_sided_mix_stops_before_training_and_stays_to_be_looked_at(toy, reply, check):
    toy.models.reply = reply
    result = toy.run()
    failed = [e.check_name for e in result.get_asset_check_evaluations() if not e.passed]
    assert failed == [check]
    assert "train" not in toy.models.calls
    assert toy.table("iter_01/mix").height == 24


def test_a_mix_whose_check_failed_is_not_trained_on_by_a_later_run(toy: Toy):
    toy.models.reply = ONE_SIDED[0][0]
    toy.run()
    toy.run()
    assert "train" not in toy.models.calls
    assert toy.run(mix={"min_negatives": 0}).success


def test_logprobs_that_are_not_the_policys_stop_the_iteration(toy: Toy, monkeypatch):
    off = Agreement(64, 2.0, 0.1, 0.9, 0.99)
    monkeypatch.setattr(toy.models, "agreement", lambda solutions, policy: off)
    result = toy.run()
    failed = [e for e in result.get_asset_check_evaluations() if not e.passed]
    assert [e.check_name for e in failed] == ["logprob_agreement"]
    assert "mean clipped ratio 0.9000" in (failed[0].description or "")
    assert "train" not in toy.models.calls
    assert toy.run(training={"ratio_limits": [0.85, 1.03]}).success


def test_an_engine_that_goes_away_loses_nothing_that_was_sampled(toy: Toy, tmp_path: Path):
    # Without a reply of ours, the fake engine's depends on the seed of each call.
    sampling = {"engine": "fake", "samples_per_prompt": 4, "shard_size": 6, "batch_size": 3}
    changes: dict[str, Any] = {"sampling": sampling, "mix": {"min_positives": 0}}
    toy.models.reply = None
    whole = Toy(tmp_path / "whole", dg.DagsterInstance.ephemeral(), FakeModels())
    whole.root.mkdir()
    whole.write("train.jsonl", range(6))
    whole.write("eval.jsonl", range(10, 14))
    whole.run(**changes)

    toy.models.fail_after = 16
    assert not toy.run(**changes).success
    toy.models.fail_after = None
    toy.models.engines.clear()
    assert toy.run(**changes).success
    assert toy.models.engines[0].generated == 24 - 12
    for key in ("iter_01/solutions", "iter_02/mix"):
        assert toy.table(key).equals(whole.table(key))


def alone(toy: Toy, key: str, **changes: Any) -> dg.ExecuteInProcessResult:
    """Only that asset is materialised, as from the UI or `dg launch`."""
    return dg.materialize(
        experiment_assets("toy", toy.experiment(**changes), toy.root),
        selection=dg.AssetSelection.keys(f"toy/{key}"),
        instance=toy.instance,
        resources={"models": toy.models, "data": str(toy.root / "data")},
        raise_on_error=False,
    )


def test_a_mix_that_failed_its_check_is_not_trained_on_by_a_checkpoint_alone(toy: Toy):
    toy.models.reply = ONE_SIDED[0][0]
    toy.run()
    result = alone(toy, "iter_01/checkpoint")
    assert "toy/iter_01/mix did not pass its checks" in failure(result, "toy__iter_01__checkpoint")
    assert "train" not in toy.models.calls


def test_tightened_limits_are_checked_without_making_the_artifact_again(toy: Toy):
    toy.run()
    result = toy.run(mix={"min_positives": 13})
    assert "iter_01/mix" not in remade(result)
    failed = [e.check_name for e in result.get_asset_check_evaluations() if not e.passed]
    assert failed == ["min_positives"]


def test_answers_that_all_cannot_be_verified_fail_the_check(toy: Toy):
    (toy.root / "train.jsonl").write_text('{"prompt": "1 + 1 =", "gold": "no number"}\n')
    result = toy.run()
    failed = [e.check_name for e in result.get_asset_check_evaluations() if not e.passed]
    assert failed == ["unverifiable_share"]
    assert "train" not in toy.models.calls


def test_a_kill_between_artifact_and_manifest_is_noticed(toy: Toy, monkeypatch):
    toy.run()
    with monkeypatch.context() as patch:
        write = Manifest.write
        patch.setattr(
            Manifest, "write", lambda m, path: write(m, path) if "mix" not in m.code else 1 / 0
        )
        toy.run(mix={"baseline": 0.5})
    assert toy.table("iter_01/mix")["advantage"].max() == 0.5
    assert "iter_01/mix" in remade(toy.run())
    assert toy.table("iter_01/mix")["advantage"].max() == 1.0


def test_a_damaged_artifact_is_made_again(toy: Toy):
    toy.run()
    path = toy.root / "data/toy/iter_01/rewards.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert remade(toy.run()) == {"iter_01/rewards"}
    assert path.read_bytes() == whole


def test_what_killed_writers_left_is_cleared_up(toy: Toy):
    toy.run()
    folder = toy.root / "data/toy/iter_02"
    (folder / ".checkpoint.12345678.tmp").mkdir()
    (folder / "checkpoint").rename(folder / ".checkpoint.87654321.old.tmp")
    assert remade(toy.run()) == set()
    assert not list(folder.glob(".checkpoint.*.tmp"))


def test_a_checkpoint_without_its_log_is_still_a_checkpoint(toy: Toy):
    toy.run()
    (toy.root / "data/toy/iter_01/checkpoint/training_log.parquet").unlink()
    assert toy.run().success


def test_forced_solutions_are_sampled_afresh(toy: Toy):
    toy.run()
    toy.models.engines.clear()
    toy.run(tags={FORCE_TAG: "toy/iter_01/solutions"})
    assert toy.models.engines[0].generated == 24


def test_an_asset_alone_says_which_input_is_missing(toy: Toy):
    result = alone(toy, "iter_01/mix")
    assert "toy/iter_01/solutions is not there" in failure(result, "toy__iter_01__mix")


def test_assets_say_what_they_are(toy: Toy):
    experiment = toy.experiment(owners=["team:nlp"], tags={"size": "toy"})
    specs = {
        asset.key.to_user_string(): asset.get_asset_spec()
        for asset in experiment_assets("toy", experiment, toy.root)
    }
    spec = specs["toy/iter_02/rewards"]
    assert spec.group_name == "toy_iter_02"
    assert spec.owners == ["team:nlp"]
    assert spec.kinds == {"polars", "parquet"}
    assert spec.tags["size"] == "toy"
    assert spec.description
    columns = spec.metadata["dagster/column_schema"].columns
    assert [c.name for c in columns][:3] == ["prompt_id", "sample_index", "answer"]
    assert all(c.description for c in columns)


def test_materialisations_carry_figures_previews_and_plots(toy: Toy):
    result = toy.run()
    metadata = {
        "/".join(e.asset_key.path[1:]): e.materialization.metadata
        for e in result.get_asset_materialization_events()
        if e.asset_key
    }
    assert metadata["iter_01/rewards"]["correct"].value == 0.5
    assert metadata["iter_01/rewards"]["dagster/row_count"].value == 24
    assert "data:image/png" in str(metadata["report"]["learning_curve"].value)
    waterfall = metadata["iter_01/mix"]["waterfall"]
    assert isinstance(waterfall, dg.TableMetadataValue)
    assert waterfall.records[0].data["rows"] == 24
    assert metadata["iter_02/eval_scores"]["pass@1"].value == 0.5
