"""What the Dagster instance knows of an experiment's runs and artifacts."""

import logging
from collections.abc import Sequence

import dagster as dg
import psutil
from dagster._core.storage.runs import SqliteRunStorage

EXPERIMENT_TAG = "topr/experiment"
STARTED = [
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.CANCELING,
]


def asset_key(key: str) -> dg.AssetKey:
    """Dagster's form of `<experiment>/iter_01/mix`."""
    return dg.AssetKey(key.split("/"))


def recorded_version(instance: dg.DagsterInstance, key: str) -> str | None:
    """The data version in the latest materialisation of `key` that the instance knows."""
    event = instance.get_latest_materialization_event(asset_key(key))
    if event is None or event.asset_materialization is None:
        return None
    return (event.asset_materialization.tags or {}).get("dagster/data_version")


def in_progress(instance: dg.DagsterInstance, name: str) -> Sequence[dg.DagsterRun]:
    """Runs of the experiment `name` that wait or have not ended, at most one of them.

    One that was created and never handed on, since its launcher was killed, will never run.
    """
    waiting = dg.DagsterRunStatus.QUEUED
    filters = dg.RunsFilter(tags={EXPERIMENT_TAG: name}, statuses=[*STARTED, waiting])
    return instance.get_runs(filters, limit=1)


def fail_dead_runs(instance: dg.DagsterInstance) -> None:
    """Runs that were killed stand as started for ever and keep their place in the pool: fail them.

    Only where the instance is a folder of this machine: process numbers of others say nothing here.
    """
    if not isinstance(instance.run_storage, SqliteRunStorage):
        return
    for run in instance.get_runs(dg.RunsFilter(statuses=STARTED)):
        pids = _processes(instance, run.run_id)
        if pids and not any(map(psutil.pid_exists, pids)):
            logging.getLogger(__name__).warning("run %s was killed; marked as failed", run.run_id)
            instance.report_run_failed(run, "The process of this run was killed.")
            instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)


def _processes(instance: dg.DagsterInstance, run_id: str) -> set[int]:
    """The processes that executed steps of a run, as its log says."""
    logs = instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
    events = [entry.dagster_event for entry in logs if entry.dagster_event]
    said = [event.engine_event_data.metadata.get("pid") for event in events]
    return {int(str(value.value)) for value in said if value is not None}
