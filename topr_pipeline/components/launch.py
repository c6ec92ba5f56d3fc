"""Launch a plan as one Dagster run on the project's instance, and clear up after killed runs."""

import contextlib
import logging
import os
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
from filelock import FileLock, Timeout

from topr_pipeline.components.graph import Node
from topr_pipeline.components.plan import Planned
from topr_pipeline.components.step import is_being_made
from topr_pipeline.components.topr_experiment import EXPERIMENT_TAG, FORCE_TAG, MERGE, asset_key
from topr_pipeline.errors import ToprError
from topr_pipeline.tables import disk_errors


@dataclass(frozen=True)
class Launched:
    """What a run came to: `failures` maps asset keys to their error messages."""

    run_id: str
    success: bool
    executed: frozenset[str]
    failures: Mapping[str, str]


@contextlib.contextmanager
def project_instance(root: Path) -> Generator[dg.DagsterInstance]:
    """The instance that the UI uses too: `$DAGSTER_HOME`, or the project's `dagster.yaml`.

    Paths in that file are relative to the project, so the block runs with it as current folder.
    """
    with contextlib.chdir(root):
        Path(".dagster").mkdir(exist_ok=True)
        # Two processes that create a fresh database at once fail.
        with FileLock(".dagster/.lock"):
            if os.environ.get("DAGSTER_HOME"):
                instance = dg.DagsterInstance.get()
            else:
                instance = dg.DagsterInstance.from_config(str(root))
        with instance:
            yield instance


def recorded_version(instance: dg.DagsterInstance, key: str) -> str | None:
    """The data version in the latest materialisation of `key` that the instance knows."""
    event = instance.get_latest_materialization_event(asset_key(key))
    if event is None or event.asset_materialization is None:
        return None
    return (event.asset_materialization.tags or {}).get("dagster/data_version")


def launch(
    definitions: dg.Definitions,
    name: str,
    instance: dg.DagsterInstance,
    nodes: Mapping[str, Node],
    data: Path,
    planned: Sequence[Planned],
    forced: Sequence[str] = (),
) -> Launched:
    """Materialise `planned` in one run of the job `name` in this process."""
    with _one_run(name, data):
        _fail_dead_runs(instance, name, nodes, data)
        result = definitions.resolve_job_def(name).execute_in_process(
            run_config={"loggers": {"console": {}}},
            instance=instance,
            raise_on_error=False,
            asset_selection=[asset_key(p.key) for p in planned],
            tags={EXPERIMENT_TAG: name, LAUNCHER_TAG: "topr", FORCE_TAG: ",".join(forced)},
        )
    by_step = {key.replace("/", "__"): key for key in nodes}
    executed, failures = set(), {}
    for event in result.all_events:
        asset, _, step = (event.step_key or "").partition(".")
        if event.is_step_success and step in ("", MERGE):
            executed.add(by_step[asset])
        if event.is_step_failure:
            failures.setdefault(by_step[asset], _failure_message(event))
    return Launched(result.run_id, result.success, frozenset(executed), failures)


LAUNCHER_TAG = "topr/launcher"


def _failure_message(event: dg.DagsterEvent) -> str:
    failure = event.step_failure_data
    if failure.user_failure_data and failure.user_failure_data.description:
        return failure.user_failure_data.description
    cause = failure.error.cause if failure.error and failure.error.cause else failure.error
    trace = "".join(cause.stack[-3:]) if cause else ""
    return f"{cause.message if cause else failure.error_display_string}{trace}"


@contextlib.contextmanager
def _one_run(name: str, data: Path) -> Generator[None]:
    lock = FileLock(data / name / ".run.lock", timeout=0)
    try:
        with disk_errors(data / name):
            (data / name).mkdir(parents=True, exist_ok=True)
            lock.acquire()
    except Timeout:
        raise ToprError(f"another `topr run {name}` is running; wait for it, or stop it") from None
    try:
        yield
    finally:
        lock.release()


def _fail_dead_runs(
    instance: dg.DagsterInstance, name: str, nodes: Mapping[str, Node], data: Path
) -> None:
    """Runs that were killed stand as started for ever and keep their place in the pool: fail them.

    A run of `topr` is dead when this process could take the experiment's lock. Of others is known
    only that a step which holds a place in a pool also holds its artifact's lock.
    """
    for run in instance.get_runs(dg.RunsFilter(statuses=_IN_PROGRESS)):
        ours = run.tags.get(EXPERIMENT_TAG) == name and LAUNCHER_TAG in run.tags
        if ours or _holds_place_without_lock(instance, run.run_id, nodes, data):
            logging.getLogger(__name__).warning("run %s was killed; marked as failed", run.run_id)
            instance.report_run_failed(run, "The process of this run was killed.")
            instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)


_IN_PROGRESS = [
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.CANCELING,
]


def _holds_place_without_lock(
    instance: dg.DagsterInstance, run_id: str, nodes: Mapping[str, Node], data: Path
) -> bool:
    by_step = {key.replace("/", "__"): node for key, node in nodes.items()}

    def dead() -> bool:
        slots = instance.event_log_storage.get_concurrency_info("accelerator").claimed_slots
        mine = [s.step_key.partition(".") for s in slots if s.run_id == run_id]
        return any(
            asset in by_step and not is_being_made(by_step[asset], data, step.removeprefix("part_"))
            for asset, _, step in mine
        )

    if not dead():
        return False
    time.sleep(2)  # a step takes its place in the pool a moment before its lock
    return dead()
