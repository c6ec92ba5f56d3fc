"""Iterations that go on by themselves: what is launched when, and once with Dagster's daemon."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pydantic import ValidationError

from tests.components.test_assets import half_right
from topr_pipeline.components.graph import Node
from topr_pipeline.components.launch import project_instance
from topr_pipeline.components.plan import Planned, State
from topr_pipeline.components.project import Project, load_project
from topr_pipeline.components.runs import EXPERIMENT_TAG
from topr_pipeline.components.schedule import (
    LONGEST_WAIT,
    Schedule,
    next_launch,
    wait_after,
)
from topr_pipeline.testing import FakeModels

YAML = """\
type: topr_pipeline.components.TOPRExperiment
attributes:
  iterations: 2
  schedule: {schedule}
  policy: {{source: tiny}}
  prompts: {{source: files, path: train.jsonl}}
  eval_prompts: {{source: files, path: eval.jsonl}}
  sampling: {{engine: fake, samples_per_prompt: 4}}
  mix: {{baseline: 0}}
  evaluation: {{samples_per_prompt: 2}}
"""
DAGSTER_YAML = (Path(__file__).parents[2] / "dagster.yaml").read_text()


def planned(**states: State) -> list[Planned]:
    """Two iterations of one asset each, after the prompts and before the report."""
    stages = {
        "prompts": ("prompts", None),
        "base": ("base_policy", 0),
        "one": ("checkpoint", 1),
        "two": ("checkpoint", 2),
        "report": ("report", None),
    }
    return [
        Planned(Node(key, stage, iteration, (), {}), states.get(key, "fresh"))
        for key, (stage, iteration) in stages.items()
    ]


@pytest.mark.parametrize(
    ("states", "keys"),
    [
        ({}, ()),
        (
            dict.fromkeys(["prompts", "base", "one", "two", "report"], "missing"),
            ("prompts", "base", "one"),
        ),
        ({"one": "stale", "two": "downstream", "report": "downstream"}, ("one",)),
        ({"two": "missing", "report": "missing"}, ("two", "report")),
        ({"report": "missing"}, ("report",)),
        ({"base": "stale", "two": "missing"}, ("base",)),
    ],
)
def test_the_first_unfinished_iteration_is_launched_with_what_it_needs(states, keys):
    assert next_launch(planned(**states), running=False).keys == keys


def test_nothing_is_launched_while_a_run_is_in_progress():
    found = next_launch(planned(one="missing"), running=True)
    assert (found.keys, found.reason) == ((), "a run of it is in progress")


def test_a_failed_check_is_reported_and_not_tried_again():
    nodes = planned(two="downstream")
    nodes[2] = Planned(nodes[2].node, "stale", "check failed: min_positives", None, failed=True)
    found = next_launch(nodes, running=False)
    assert found.keys == ()
    assert found.reason.startswith("one: check failed: min_positives")


def test_an_experiment_without_iterations_is_one_launch():
    nodes = [Planned(Node("base", "base_policy", 0, (), {}), "missing")]
    nodes.append(Planned(Node("report", "report", None, (), {}), "missing"))
    assert next_launch(nodes, running=False).keys == ("base", "report")


def test_the_wait_doubles_with_each_failure_in_a_row():
    assert wait_after([], 30) == wait_after([False, True], 30) == 0
    assert [wait_after([True] * n, 30) for n in (1, 2, 3)] == [60, 120, 240]
    assert wait_after([True] * 20, 30) == LONGEST_WAIT


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({}, "one of cron, every_seconds and declarative"),
        ({"cron": "@never"}, "minute hour day month weekday"),
        ({"cron": "61 * * * *"}, "minute hour day month weekday"),
        ({"cron": "0 * * * *", "timezone": "Mars"}, "Europe/Paris"),
        ({"cron": "0 * * * *", "declarative": True}, "one of cron"),
        ({"every_seconds": 0}, "greater than or equal to 1"),
    ],
)
def test_a_wrong_schedule_is_refused(said, message):
    with pytest.raises(ValidationError, match=message):
        Schedule.model_validate(said)


@pytest.fixture
def project(write_project: Callable[..., Path], monkeypatch) -> Callable[[str], Project]:
    def load(schedule: str) -> Project:
        root = write_project(toy=YAML.format(schedule=schedule))
        write_inputs(root)
        monkeypatch.chdir(root)
        return load_project(root, FakeModels(half_right))

    return load


def write_inputs(root: Path) -> None:
    (root / "dagster.yaml").write_text(DAGSTER_YAML)
    for name, numbers in {"train": range(1, 9), "eval": range(20, 24)}.items():
        rows = [f'{{"prompt": "{n} + 1 = ?", "gold": "{n + 1}"}}\n' for n in numbers]
        (root / f"{name}.jsonl").write_text("".join(rows))


def tick(project: Project, instance: dg.DagsterInstance) -> Any:
    """What the schedule or the sensor says now; its run is executed at once."""
    repository = project.definitions.get_repository_def()
    asked = {"repository_def": repository, "resources": {"data": str(project.data)}}
    if repository.schedule_defs:
        (one,) = repository.schedule_defs
        said = one.evaluate_tick(dg.build_schedule_context(instance, **asked))
    else:
        (one,) = repository.sensor_defs
        said = one.evaluate_tick(dg.build_sensor_context(instance, **asked))
    if not said.run_requests:
        return said.skip_message
    (request,) = said.run_requests
    assert request.asset_selection is not None
    job = project.definitions.resolve_job_def("toy")
    result = job.execute_in_process(
        instance=instance,
        asset_selection=request.asset_selection,
        tags=request.tags,
        raise_on_error=False,
    )
    return result.success, request.tags["topr/iteration"], len(request.asset_selection)


@pytest.mark.parametrize("schedule", ["{cron: '* * * * *'}", "{every_seconds: 30}"])
def test_each_tick_makes_the_next_iteration_until_all_are_done(project, schedule):
    toy = project(schedule)
    with project_instance(toy.root) as instance:
        assert tick(toy, instance) == (True, "1", 9)
        assert tick(toy, instance) == (True, "2", 6)
        assert tick(toy, instance) == "toy: all 15 assets are fresh"


def test_a_failed_iteration_is_tried_again_at_the_next_tick(project):
    toy = project("{cron: '* * * * *'}")
    with project_instance(toy.root) as instance:
        broken = load_project(toy.root, FakeModels(half_right, fail_after=0))
        assert tick(broken, instance)[0] is False
        assert tick(toy, instance)[:2] == (True, "1")


def test_a_sensor_waits_after_a_failure(project):
    toy = project("{every_seconds: 30}")
    with project_instance(toy.root) as instance:
        broken = load_project(toy.root, FakeModels(half_right, fail_after=0))
        assert tick(broken, instance)[0] is False
        assert "its last run failed; tried again in" in tick(toy, instance)


def test_a_tick_during_a_run_launches_nothing(project):
    toy = project("{cron: '* * * * *'}")
    with project_instance(toy.root) as instance:
        job = toy.definitions.resolve_job_def("toy")
        instance.create_run_for_job(
            job, status=dg.DagsterRunStatus.STARTED, tags={EXPERIMENT_TAG: "toy"}
        )
        assert tick(toy, instance) == "toy: a run of it is in progress"


def test_declared_assets_are_requested_while_they_are_missing_and_after_a_change(project):
    toy = project("{declarative: true}")
    defs = toy.definitions
    with project_instance(toy.root) as instance:
        first = dg.evaluate_automation_conditions(defs, instance)
        assert first.total_requested == 15
        assert defs.resolve_job_def("toy").execute_in_process(instance=instance).success
        second = dg.evaluate_automation_conditions(defs, instance, cursor=first.cursor)
        assert second.total_requested == 0
        text = (toy.root / "train.jsonl").read_text()
        (toy.root / "train.jsonl").write_text(
            text.replace("1 + 1", "91 + 1").replace('"2"', '"92"')
        )
        changed = load_project(toy.root, FakeModels(half_right)).definitions
        third = dg.evaluate_automation_conditions(changed, instance, cursor=second.cursor)
        assert third.get_num_requested(dg.AssetKey(["toy", "prompts"])) == 1
        assert third.get_num_requested(dg.AssetKey(["toy", "iter_00", "checkpoint"])) == 0


LOCATION = """
from pathlib import Path
from topr_pipeline.components.project import load_project
from topr_pipeline.testing import FakeModels

def right(prompt, i):
    return f"The answer is {int(prompt.split(maxsplit=1)[0]) + 1 + i % 2}"

defs = load_project(Path(__file__).parent, FakeModels(right)).definitions
"""


def test_dagsters_daemon_makes_a_scheduled_iteration_by_itself(project, tmp_path):
    root = project("{cron: '* * * * *'}").root
    (root / "location.py").write_text(LOCATION)
    environment = {**os.environ, "DAGSTER_HOME": str(root), "PYTHONPATH": str(root)}
    with project_instance(root), (tmp_path / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen(
            [Path(sys.executable).with_name("dagster-daemon"), "run", "-f", "location.py"],
            **{"cwd": root, "env": environment, "stdout": log, "stderr": log},
        )
    try:
        manifest = root / "data" / "toy" / "iter_01" / "eval_scores.json"
        ends = time.monotonic() + 240  # a tick is up to a minute away
        while not manifest.exists():
            said = (tmp_path / "daemon.log").read_text()
            assert daemon.poll() is None and time.monotonic() < ends, said
            time.sleep(0.2)
    finally:
        daemon.send_signal(signal.SIGINT)
        daemon.wait(60)
    with project_instance(root) as instance:
        (run,) = instance.get_runs(dg.RunsFilter(tags={EXPERIMENT_TAG: "toy"}))
    assert run.tags["topr/iteration"] == "1"
    assert run.tags["dagster/schedule_name"] == "toy_schedule"


def test_a_declared_asset_that_failed_waits_until_something_changes(project):
    toy = project("{declarative: true}")
    broken = load_project(toy.root, FakeModels(half_right, fail_after=0)).definitions
    with project_instance(toy.root) as instance:
        first = dg.evaluate_automation_conditions(broken, instance)
        job = broken.resolve_job_def("toy")
        assert not job.execute_in_process(instance=instance, raise_on_error=False).success
        second = dg.evaluate_automation_conditions(broken, instance, cursor=first.cursor)
        assert second.total_requested == 0
