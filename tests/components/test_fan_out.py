"""`sampling.shards: N`: the same solutions, sampled by N steps."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from topr_pipeline.components import (
    experiment_assets,
    experiment_definitions,
    inspection,
    topr_experiment,
)
from topr_pipeline.components.graph import CHECKS, unroll
from topr_pipeline.components.launch import launch
from topr_pipeline.components.plan import plan
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Experiment
from topr_pipeline.tables import remove
from topr_pipeline.testing import FakeEngine, FakeModels

ROWS, PARTS = 24, 3


def experiment(shards: int = PARTS) -> Experiment:
    """Six prompts x four samples in twelve shards of the store."""
    sampling = {"samples_per_prompt": 4, "shard_size": 2, "batch_size": 2, "shards": shards}
    return Experiment.model_validate(
        {
            "iterations": 1,
            "policy": {"source": "tiny"},
            "prompts": {"source": "word_problems", "count": ROWS // 4},
            "eval_prompts": {"source": "word_problems", "count": 2},
            "sampling": {"engine": "fake", **sampling},
            "mix": {"min_positives": 0, "min_negatives": 0},
            "evaluation": {"samples_per_prompt": 2},
        }
    )


def run(
    root: Path, shards: int, models: FakeModels, instance: dg.DagsterInstance | None = None
) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        experiment_assets("toy", experiment(shards), root),
        resources={"models": models, "data": str(root)},
        instance=instance or dg.DagsterInstance.ephemeral(),
        raise_on_error=False,
    )


def solutions(root: Path) -> bytes:
    return (root / "toy/iter_01/solutions.parquet").read_bytes()


def store(root: Path) -> dict[str, bytes]:
    samples = root / "toy/samples"
    return {str(p.relative_to(samples)): p.read_bytes() for p in samples.rglob("*.parquet")}


def sampling_engines(models: FakeModels) -> list[FakeEngine]:
    """Of the iteration: those of the evaluations sample four rows each."""
    return [e for e in models.engines if e.generated not in (0, 4)]


def steps(result: dg.ExecuteInProcessResult, event: str) -> list[str]:
    prefix = "toy__iter_01__solutions."
    keys = [e.step_key or "" for e in result.all_events if e.event_type_value == event]
    return sorted(k.removeprefix(prefix) for k in keys if k.startswith(prefix))


def test_parts_give_the_very_bytes_of_one_step(tmp_path: Path):
    whole, parts = FakeModels(), FakeModels()
    assert run(tmp_path / "whole", 1, whole).success
    result = run(tmp_path / "parts", PARTS, parts)
    assert result.success
    assert solutions(tmp_path / "parts") == solutions(tmp_path / "whole")
    assert store(tmp_path / "parts") == store(tmp_path / "whole")
    assert [e.generated for e in sampling_engines(whole)] == [ROWS]
    assert [(e.started, e.generated) for e in sampling_engines(parts)] == [(1, ROWS // PARTS)] * 3
    assert steps(result, "STEP_SUCCESS") == ["merge", *(f"part_0{i}of03" for i in range(PARTS))]


def test_the_merged_asset_says_what_the_parts_did(tmp_path: Path):
    result = run(tmp_path, PARTS, FakeModels())
    (said,) = [
        e.materialization
        for e in result.get_asset_materialization_events()
        if e.asset_key and e.asset_key.path[-1] == "solutions"
    ]
    figures: dict[str, Any] = {name: value.value for name, value in said.metadata.items()}
    assert figures["dagster/row_count"] == ROWS
    assert figures["cache_hit_share"] == 0
    assert figures["tokens"] == ROWS * 5
    assert figures["tokens_per_s"] > 0
    manifest = json.loads((tmp_path / "toy/iter_01/solutions.json").read_text())
    assert (said.tags or {})["dagster/data_version"] == manifest["data_version"]
    assert not list(tmp_path.rglob("*.parts/*"))


@pytest.mark.parametrize(("before", "now"), [(1, PARTS), (PARTS, 1), (PARTS, 2)])
def test_another_number_of_parts_makes_nothing_again(tmp_path: Path, before: int, now: int):
    run(tmp_path, before, FakeModels())
    nodes = unroll("toy", experiment(now), tmp_path)
    assert {p.state for p in plan(nodes, tmp_path)} == {"fresh"}
    again = FakeModels()
    result = run(tmp_path, now, again)
    assert all(
        e.materialization.metadata["reused"].value
        for e in result.get_asset_materialization_events()
    )
    assert again.calls == []


class Failing(FakeModels):
    """Engine number `which` of those for the iteration raises `error` once it has to sample."""

    def __init__(self, error: Exception):
        super().__init__()
        self.error = error

    def engine(self, sampling: Any) -> FakeEngine:
        engine = super().engine(sampling)
        if sampling.samples_per_prompt == 4 and self.calls.count("engine") == 2:
            engine.generate = self._fail
        return engine

    def _fail(self, batch: Any, seed: int) -> Any:
        raise self.error


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = topr_experiment.RETRY._replace(delay=0.01)
    monkeypatch.setattr(topr_experiment, "RETRY", policy)


def test_a_part_whose_engine_crashed_is_tried_again_alone(tmp_path: Path, at_once: None):
    result = run(tmp_path, PARTS, Failing(RuntimeError("out of memory")))
    assert result.success
    assert len(steps(result, "STEP_UP_FOR_RETRY")) == 1
    assert len(steps(result, "STEP_RESTARTED")) == 1
    run(tmp_path / "whole", 1, FakeModels())
    assert solutions(tmp_path) == solutions(tmp_path / "whole")


def test_what_the_user_has_to_mend_is_not_tried_again(tmp_path: Path, at_once: None):
    result = run(tmp_path, PARTS, Failing(ToprError("no model in policy")))
    assert not result.success
    assert steps(result, "STEP_UP_FOR_RETRY") == []
    (failed,) = steps(result, "STEP_FAILURE")
    data = result.failure_data_for_node(f"toy__iter_01__solutions.{failed}")
    assert data is not None
    assert data.user_failure_data is not None
    assert data.user_failure_data.description == "no model in policy"
    assert not (tmp_path / "toy/iter_01/solutions.parquet").exists()


def test_a_launch_counts_the_asset_once_and_names_its_failure(tmp_path: Path, at_once: None):
    e = experiment()
    models = Failing(ToprError("no model in policy"))
    resources = {"models": models, "data": str(tmp_path)}
    definitions = dg.Definitions.merge(
        experiment_definitions("toy", e, tmp_path), dg.Definitions(resources=resources)
    )
    nodes = unroll("toy", e, tmp_path)
    with dg.DagsterInstance.ephemeral() as instance:
        first, second = (
            launch(definitions, "toy", instance, tmp_path, plan(nodes, tmp_path)) for _ in range(2)
        )
    assert first.failures == {"toy/iter_01/solutions": "no model in policy"}
    assert "toy/iter_01/solutions" not in first.executed
    assert second.success
    assert second.executed >= {"toy/iter_01/solutions", "toy/report"}


def test_a_failed_check_of_the_merged_asset_stops_what_follows(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(CHECKS, "solutions", ("made_up",))
    inspect = inspection._INSPECTORS["solutions"]

    def failing(*args: Any) -> inspection.Inspection:
        check = inspection.Check("made_up", False, "as told", {})
        found = inspect(*args)
        return inspection.Inspection(found.headline, found.metadata, [check])

    monkeypatch.setitem(inspection._INSPECTORS, "solutions", failing)
    result = run(tmp_path, PARTS, FakeModels())
    failed = [e.check_name for e in result.get_asset_check_evaluations() if not e.passed]
    assert failed == ["made_up"]
    assert (tmp_path / "toy/iter_01/solutions.parquet").exists()
    assert not (tmp_path / "toy/iter_01/rewards.parquet").exists()


MULTIPROCESS = """
from pathlib import Path
import dagster as dg
from test_fan_out import experiment
from topr_pipeline.components import experiment_definitions
from topr_pipeline.testing import FakeModels

ROOT = Path({root!r})

def job():
    resources = dict(models=FakeModels(), data=str(ROOT))
    start = dict(forkserver=dict(preload_modules=["dagster", "topr_pipeline.components"]))
    executor = dg.multiprocess_executor.configured(dict(max_concurrent=2, start_method=start))
    return dg.Definitions.merge(
        experiment_definitions("toy", experiment(), ROOT),
        dg.Definitions(resources=resources, executor=executor),
    ).resolve_job_def("toy")

if __name__ == "__main__":
    solutions = dg.AssetKey(["toy", "iter_01", "solutions"])
    with dg.DagsterInstance.local_temp({root!r} + "/home") as instance:
        done = dg.execute_job(
            dg.reconstructable(job), instance=instance, asset_selection=[solutions]
        )
    assert done.success
"""


@pytest.mark.slow
def test_parts_in_processes_of_their_own_give_the_very_bytes_of_one_step(tmp_path: Path):
    run(tmp_path / "whole", 1, FakeModels())
    run(tmp_path, 1, FakeModels())
    for made in (*tmp_path.glob("toy/iter_01/*"), tmp_path / "toy/samples"):
        remove(made)
    script = tmp_path / "run_parts.py"
    (tmp_path / "home").mkdir()
    script.write_text(MULTIPROCESS.format(root=str(tmp_path)))
    here = [Path(__file__).parent, Path(topr_experiment.__file__).parents[2]]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, here))}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    assert solutions(tmp_path) == solutions(tmp_path / "whole")
