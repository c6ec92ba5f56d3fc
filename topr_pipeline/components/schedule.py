"""When an experiment goes on by itself: by the clock, all the time, or by Dagster's conditions.

`next_launch` decides for the first two: one iteration after another, each in a run of its own.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self
from zoneinfo import available_timezones

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import (
    UnresolvedAssetJobDefinition,
)
from dagster._utils.schedules import is_valid_cron_schedule
from pydantic import AfterValidator, Field, model_validator

from topr_pipeline.components.graph import Node, unroll
from topr_pipeline.components.plan import Planned, plan
from topr_pipeline.components.runs import (
    EXPERIMENT_TAG,
    asset_key,
    fail_dead_runs,
    in_progress,
    recorded_version,
)
from topr_pipeline.experiment import Experiment
from topr_pipeline.section import Positive, Section

ITERATION_TAG = "topr/iteration"
LONGEST_WAIT = 3600.0
"""Seconds: a sensor tries a failed iteration again after twice the time before, at most this."""


def _cron(value: str) -> str:
    if not is_valid_cron_schedule(value):
        raise ValueError("five fields are wanted: minute hour day month weekday, as in '0 * * * *'")
    return value


def _timezone(value: str) -> str:
    if value not in available_timezones():
        raise ValueError("a name of the time zone database is wanted, such as Europe/Paris")
    return value


class Schedule(Section):
    """When the next iteration is launched: one of `cron`, `every_seconds`, `declarative`."""

    cron: Annotated[str, AfterValidator(_cron)] | None = Field(
        default=None, description="at these times; minute hour day month weekday"
    )
    timezone: Annotated[str, AfterValidator(_timezone)] = Field(
        default="UTC", description="of cron"
    )
    every_seconds: Positive | None = Field(
        default=None, description="without a pause: look this often whether a run has ended"
    )
    declarative: bool = Field(
        default=False, description="each asset by itself, through Dagster's automation conditions"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.cron is not None) + (self.every_seconds is not None) + self.declarative != 1:
            raise ValueError("one of cron, every_seconds and declarative: true is wanted")
        return self


class Scheduled(Experiment):
    """An experiment, and when it goes on by itself."""

    schedule: Schedule | None = None


@dataclass(frozen=True)
class Next:
    """What to launch now: `keys` of `iteration`, or none, and why."""

    keys: tuple[str, ...]
    reason: str
    iteration: int = 0


def next_launch(planned: Sequence[Planned], running: bool) -> Next:
    """The first iteration with something missing or stale, and all before it that it needs.

    Prompts, base policy and its scores come with iteration 1, the report with the last one. Nothing
    while a run of the experiment is `running`, and nothing while a failed check stands in the way:
    running again would end the same.
    """
    if running:
        return Next((), "a run of it is in progress")
    wanted = [p for p in planned if p.state != "fresh"]
    if not wanted:
        return Next((), f"all {len(planned)} assets are fresh")
    last = max(p.node.iteration or 0 for p in planned)
    first = min(_iteration(p.node, last) for p in wanted)
    now = [p for p in wanted if _iteration(p.node, last) <= first]
    if failed := [p for p in now if p.failed]:
        said = "; ".join(f"{p.key}: {p.reason}" for p in failed)
        return Next((), f"{said}. It goes on once the YAML or its files are changed")
    return Next(tuple(p.key for p in now), f"iteration {first}: {len(now)} assets", first)


def _iteration(node: Node, last: int) -> int:
    """With which iteration a node is made."""
    return last if node.stage == "report" else max(node.iteration or 0, min(1, last))


def automation(
    name: str, experiment: Experiment, root: Path, job: UnresolvedAssetJobDefinition
) -> dg.Definitions:
    """The schedule or sensor that `experiment.schedule` asks for, switched on."""
    asked = experiment.schedule if isinstance(experiment, Scheduled) else None

    def nodes() -> dict[str, Node]:
        return unroll(name, experiment, root)  # at each tick: prompt files may have changed

    if asked is None:
        return dg.Definitions()
    said = {"job": job, "required_resource_keys": {"data"}, "description": "The next iteration."}
    if asked.cron is not None:

        @dg.schedule(
            name=f"{name}_schedule",
            cron_schedule=asked.cron,
            execution_timezone=asked.timezone,
            default_status=dg.DefaultScheduleStatus.RUNNING,
            **said,
        )
        def by_the_clock(context: dg.ScheduleEvaluationContext):
            return _request(name, nodes(), context.instance, Path(context.resources.data))

        return dg.Definitions(schedules=[by_the_clock])
    if asked.every_seconds is not None:
        pause = asked.every_seconds

        @dg.sensor(
            name=f"{name}_sensor",
            minimum_interval_seconds=pause,
            default_status=dg.DefaultSensorStatus.RUNNING,
            **said,
        )
        def continuously(context: dg.SensorEvaluationContext):
            if (wait := _wait(name, context.instance, pause)) > 0:
                return dg.SkipReason(f"its last run failed; tried again in {wait:.0f} s")
            return _request(name, nodes(), context.instance, Path(context.resources.data))

        return dg.Definitions(sensors=[continuously])
    sensor = dg.AutomationConditionSensorDefinition(
        f"{name}_automation",
        target=dg.AssetSelection.assets(*(asset_key(key) for key in nodes())),
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    return dg.Definitions(sensors=[sensor])


def _request(
    name: str, nodes: dict[str, Node], instance: dg.DagsterInstance, data: Path
) -> dg.RunRequest | dg.SkipReason:
    fail_dead_runs(instance)
    planned = plan(nodes, data, lambda key: recorded_version(instance, key))
    found = next_launch(planned, bool(in_progress(instance, name)))
    if not found.keys:
        return dg.SkipReason(f"{name}: {found.reason}")
    return dg.RunRequest(
        asset_selection=[asset_key(key) for key in found.keys],
        tags={EXPERIMENT_TAG: name, ITERATION_TAG: str(found.iteration)},
    )


def _wait(name: str, instance: dg.DagsterInstance, pause: float) -> float:
    """Seconds until a failed iteration is tried again; 0 or less: now."""
    records = instance.get_run_records(dg.RunsFilter(tags={EXPERIMENT_TAG: name}), limit=16)
    ended = [r.end_time or 0 for r in records]
    failures = [r.dagster_run.status == dg.DagsterRunStatus.FAILURE for r in records]
    return wait_after(failures, pause) - (time.time() - ended[0]) if ended else 0.0


def wait_after(failures: Sequence[bool], pause: float) -> float:
    """Seconds to wait after the last run: `failures`, newest first, says which runs failed.

    0 after a success, else `pause` doubled with each failure in a row, at most `LONGEST_WAIT`.
    """
    in_a_row = [*failures, False].index(False)
    return min(pause * 2**in_a_row, LONGEST_WAIT) if in_a_row else 0.0


def condition(experiment: Experiment) -> dg.AutomationCondition | None:
    """Of each asset with `schedule.declarative`: make it when it is missing, when its YAML or a
    parent changed; not after a failure, until something changes, nor past a failed check."""
    asked = experiment.schedule if isinstance(experiment, Scheduled) else None
    if asked is None or not asked.declarative:
        return None
    of = dg.AutomationCondition
    changed: dg.AutomationCondition = of.code_version_changed() | of.any_deps_updated()
    return (
        (changed.since_last_handled() | (of.missing() & ~of.execution_failed()))
        & ~of.any_deps_missing()
        & ~of.any_deps_in_progress()
        & ~of.in_progress()
        & of.all_deps_blocking_checks_passed()
    )
