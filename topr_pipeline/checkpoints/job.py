"""The process of a job: `python -m topr_pipeline.checkpoints.job JOB PARENT`.

JOB is a file of `jobs`, PARENT the number of the process without which this one ends. A job of more
than one process starts torchrun here, which starts this module once for each of them.
"""

import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_pipes import PipesContext, open_dagster_pipes

from topr_pipeline.checkpoints.jobs import Job, TrainJob, processes_of, read_job
from topr_pipeline.checkpoints.packages import unseen, unused
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import TinyPolicy, Training
from topr_pipeline.progress import Progress, quiet
from topr_pipeline.tables import MIX, TIMED, TRAINING_LOG

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

EVERY = 0.5
"""Seconds between looks at the parent."""
HOLD = 10.0
"""Seconds that other processes wait with an error, since the first one is to tell it."""


def follow(parent: int) -> None:
    """Kill this process when `parent` is not its parent any more: nobody waits for it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(EVERY)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def perform(job: Job, progress: Progress = quiet) -> Mapping[str, Any]:
    """Do `job` in this process; the figures that the launcher returns.

    The policy is written to `job.folder`, the log of its training beside it.
    """
    if isinstance(job, TrainJob):
        _import_trainer(job.training)
        from topr_pipeline.checkpoints.trainer import train

        trained = train(
            MIX.read(job.mix), job.start, job.folder, job.training, job.seed, progress,
            state=job.state, logs=job.logs, name=job.name, on_policy=job.on_policy,
        )  # fmt: skip
        log, figures = trained.log, {"mean_clipped_ratio": trained.mean_clipped_ratio}
    else:
        if isinstance(job.policy, TinyPolicy):
            _import_trainer(None)
        from topr_pipeline.checkpoints.base import prepare_base_policy

        log = prepare_base_policy(job.policy, job.folder, job.seed, progress, state=job.state)
        figures = {}
    if log is not None and _rank() == 0:
        TRAINING_LOG.write(log, job.folder / TIMED)
    return figures


def _import_trainer(training: Training | None) -> None:
    """Import transformers' Trainer, without what this training does not use."""
    with unseen(*unused(training)):
        importlib.import_module("topr_pipeline.checkpoints.trainer")


def main(file: str, parent: str) -> int:
    """Follow the parent, do the job, tell how it went; the exit code."""
    follow(int(parent))
    job = read_job(Path(file))
    if processes_of(job) > 1 and "RANK" not in os.environ:
        return _torchrun(file, processes_of(job))
    if job.threads is not None:
        import torch

        torch.set_num_threads(job.threads)
    if _rank() > 0:
        return _silent(job)
    with open_dagster_pipes() as pipes, _logged(pipes):
        try:
            figures = perform(job, _reporting(pipes))
        except ToprError as error:
            pipes.report_custom_message({"error": str(error)})
            return 1
        pipes.report_custom_message({"result": dict(figures)})
    _leave()
    return 0


def _silent(job: Job) -> int:
    """The job in a process that only helps: its own error is told where the first one has none."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    try:
        perform(job)
    except ToprError as error:
        get_error_handler().record_exception(error)
        time.sleep(HOLD)
        sys.stderr.write(f"{error}\n")
        return 1
    _leave()
    return 0


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _leave() -> None:
    """Say goodbye to the other processes; torch warns of those that do not."""
    if "RANK" in os.environ:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()


def _torchrun(file: str, processes: int) -> int:
    """Start the processes; the exit code, 128 + signal where one was killed, as shells have it."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    arguments = ["--standalone", "--nproc-per-node", str(processes), "--module"]
    try:
        run.main([*arguments, "topr_pipeline.checkpoints.job", file, str(os.getpid())])
    except ChildFailedError as error:
        failure = first(error.failures)
        sys.stderr.write(f"{_last_words(failure)}\n")
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    return 0


def first(failures: "Mapping[int, ProcessFailure]") -> "ProcessFailure":
    """The failure that the others followed from.

    One that died without a word, since those that lose it have an exception to record; else the
    earliest record. Who was told to end (SIGTERM) followed.
    """

    def order(failure: "ProcessFailure") -> tuple[int, float]:
        record = Path(failure.error_file)
        if record.is_file():
            return 1, record.stat().st_mtime_ns
        return (2 if failure.exitcode == -signal.SIGTERM else 0), 0

    return min(failures.values(), key=order)


def _last_words(failure: "ProcessFailure") -> str:
    """What a failed process recorded: the traceback of its exception, or a ToprError's message."""
    said: Any = failure.message
    if isinstance(said, Mapping):
        named, _, message = str(said["message"]).partition(": ")
        said = message if named == ToprError.__name__ else said["extraInfo"]["py_callstack"]
        return str(said).strip()
    return f"process {failure.local_rank} of the job ended first, without an exception of its own"


def _reporting(pipes: PipesContext) -> Progress:
    def report(done: int, total: int, **figures: float) -> None:
        pipes.report_custom_message({"done": done, "total": total, "figures": figures})

    return report


class _Handler(logging.Handler):
    def __init__(self, pipes: PipesContext):
        super().__init__(logging.WARNING)
        self.pipes = pipes

    def emit(self, record: logging.LogRecord) -> None:
        self.pipes.log.log(record.levelno, record.getMessage())


@contextmanager
def _logged(pipes: PipesContext) -> Generator[None]:
    """This project's warnings go to whoever started the job."""
    logger, handler = logging.getLogger("topr_pipeline"), _Handler(pipes)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _recorded(*arguments: str) -> int | None:
    """`main`; of several processes, each records the exception that ends it."""
    from torch.distributed.elastic.multiprocessing.errors import record

    return record(main)(*arguments)


if __name__ == "__main__":
    sys.exit((_recorded if "RANK" in os.environ else main)(*sys.argv[1:]))
