"""Launch a plan as one Dagster run on the project's instance, and clear up after killed runs."""

import contextlib
import logging
import os
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
from dagster._core.instance.ref import InstanceRef
from filelock import FileLock, Timeout

from topr_pipeline.components.plan import Planned
from topr_pipeline.components.runs import EXPERIMENT_TAG, asset_key, fail_dead_runs, in_progress
from topr_pipeline.components.topr_experiment import ACCELERATOR, FORCE_TAG, MERGE
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
            home = os.environ.get("DAGSTER_HOME") or str(root)
            reference = InstanceRef.from_dir(home, overrides=_UNCAPTURED)
            instance = dg.DagsterInstance.from_ref(reference)
        with instance:
            yield instance


# Captured output is copied through a file: a progress bar would not know its terminal any more.
_UNCAPTURED = {
    "compute_logs": {
        "module": "dagster._core.storage.noop_compute_log_manager",
        "class": "NoOpComputeLogManager",
    }
}


def launch(
    definitions: dg.Definitions,
    name: str,
    instance: dg.DagsterInstance,
    data: Path,
    planned: Sequence[Planned],
    forced: Sequence[str] = (),
) -> Launched:
    """Materialise `planned` in one run of the job `name` in this process.

    Raises KeyboardInterrupt when the run was interrupted, ToprError while another run of the
    experiment is in progress.
    """
    with _one_run(name, data):
        fail_dead_runs(instance)
        if others := in_progress(instance, name):
            raise ToprError(
                f"run {others[0].run_id} of {name}, launched by a schedule or from the UI, is in "
                "progress; wait for it, or terminate it in the UI"
            )
        _wait_for_accelerator(instance)
        result = definitions.resolve_job_def(name).execute_in_process(
            run_config={"loggers": {"console": {}}},
            instance=instance,
            raise_on_error=False,
            asset_selection=[asset_key(p.key) for p in planned],
            tags={EXPERIMENT_TAG: name, LAUNCHER_TAG: "topr", FORCE_TAG: ",".join(forced)},
        )
    by_step = {p.key.replace("/", "__"): p.key for p in planned}
    executed, failures = set(), {}
    for event in result.all_events:
        asset, _, step = (event.step_key or "").partition(".")
        if event.is_step_success and step in ("", MERGE):
            executed.add(by_step[asset])
        if event.is_step_failure:
            error = event.step_failure_data.error_display_string
            if INTERRUPTED in error:
                raise KeyboardInterrupt
            if CHECK_FAILED in error:  # the artifact was made, and its manifest says what failed
                executed.add(by_step[asset])
                continue
            failures.setdefault(by_step[asset], _failure_message(event))
    return Launched(result.run_id, result.success, frozenset(executed), failures)


LAUNCHER_TAG = "topr/launcher"
INTERRUPTED, CHECK_FAILED = "DagsterExecutionInterruptedError", "DagsterAssetCheckFailedError"


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


def _wait_for_accelerator(instance: dg.DagsterInstance) -> None:
    """Wait here while other runs hold the pool: Dagster's own wait hears no Ctrl-C."""
    said = False
    while slots := instance.event_log_storage.get_concurrency_info(ACCELERATOR).claimed_slots:
        if not said:
            log = logging.getLogger(__name__)
            log.warning("waiting for the accelerator, which run %s holds", slots[0].run_id)
        said = True
        time.sleep(1)
