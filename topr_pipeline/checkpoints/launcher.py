"""Run a job in processes of its own: their memory is returned, and a crash is told as what it was.

The processes tell their progress and result in the protocol of Dagster Pipes, a file of JSON lines.
A `Channel` is who reads it: `PlainChannel` here, Dagster in `components/pipes.py`.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dagster_pipes import (
    DAGSTER_PIPES_CONTEXT_ENV_VAR,
    DAGSTER_PIPES_MESSAGES_ENV_VAR,
    encode_param,
)

from topr_pipeline.checkpoints.jobs import Job, processes_of, write_job
from topr_pipeline.errors import ToprError
from topr_pipeline.progress import Progress, quiet

POLL = 0.05
"""Seconds between looks at the processes."""
GRACE = 10.0
"""Seconds between asking processes to end and ending them."""
LAST_WORDS = 12
"""Lines of stderr in the report of a death."""


class Session(Protocol):
    """An open channel: what the processes need to find it, and what they said so far."""

    @property
    def env(self) -> Mapping[str, str]: ...

    def messages(self) -> Sequence[Mapping[str, Any]]:
        """All payloads so far, oldest first."""
        ...


class Channel(Protocol):
    """How messages come back. After `open`'s block has ended, `messages` are complete."""

    def open(self) -> AbstractContextManager[Session]: ...


class PlainChannel:
    """Reads the messages itself; the processes' log records become records of this process."""

    @contextmanager
    def open(self) -> "Generator[_File]":
        """A file in a temporary folder."""
        with tempfile.TemporaryDirectory() as folder:
            session = _File(Path(folder) / "messages")
            yield session
            session.messages()


def run_job(
    job: Job, progress: Progress = quiet, channel: Channel | None = None
) -> Mapping[str, Any]:
    """Do `job` in processes of its own; the figures that it returns.

    Raises the ToprError that stopped the job, or one that says how its process died: exit code or
    signal, and the last lines of its stderr. When this process is interrupted, the job is ended;
    when this process is killed, the job ends itself.
    """
    told = _Told(progress)
    with tempfile.TemporaryDirectory(prefix="topr-") as scratch:
        file, stderr = Path(scratch) / "job.json", Path(scratch) / "stderr"
        write_job(job, file)
        with (
            (channel or PlainChannel()).open() as session,
            _started(file, stderr, session.env) as process,
        ):
            while process.poll() is None:
                told(session.messages())
                time.sleep(POLL)
        told(session.messages())
        if told.error is not None:
            raise ToprError(told.error)
        if process.returncode == 0 and told.result is not None:
            return told.result
        raise _death(job, process.returncode, stderr)


@dataclass
class _Told:
    """What the processes said, passed on once."""

    progress: Progress
    seen: int = 0
    result: Mapping[str, Any] | None = None
    error: str | None = None

    def __call__(self, messages: Sequence[Mapping[str, Any]]) -> None:
        for message in messages[self.seen :]:
            if "done" in message:
                self.progress(message["done"], message["total"], **message["figures"])
            self.result = message.get("result", self.result)
            self.error = message.get("error", self.error)
        self.seen = len(messages)


@dataclass
class _File:
    """The session of a PlainChannel: reads whole lines from where it left off."""

    path: Path
    at: int = 0
    said: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def env(self) -> Mapping[str, str]:
        return {
            DAGSTER_PIPES_CONTEXT_ENV_VAR: encode_param({"data": {"extras": {}}}),
            DAGSTER_PIPES_MESSAGES_ENV_VAR: encode_param({"path": str(self.path)}),
        }

    def messages(self) -> Sequence[Mapping[str, Any]]:
        if self.path.exists():
            with self.path.open("rb") as stream:
                stream.seek(self.at)
                for line in stream:
                    if not line.endswith(b"\n"):
                        break
                    self.at += len(line)
                    self._take(json.loads(line))
        return self.said

    def _take(self, message: Mapping[str, Any]) -> None:
        parameters = message["params"]
        match message["method"]:
            case "report_custom_message":
                self.said.append(parameters["payload"])
            case "log":
                level = logging.getLevelNamesMapping()[parameters["level"].upper()]
                logging.getLogger("topr_pipeline.checkpoints").log(level, parameters["message"])


@contextmanager
def _started(file: Path, stderr: Path, env: Mapping[str, str]) -> Generator[subprocess.Popen]:
    """The job's process, in a session of its own: Ctrl-C reaches it through here alone."""
    module = "topr_pipeline.checkpoints.job"
    command = [sys.executable, "-m", module, str(file), str(os.getpid())]
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    with stderr.open("wb") as said:
        process = subprocess.Popen(
            command,
            env={**os.environ, **env, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen) -> None:
    """End what still runs, kindly and then not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                continue


def _death(job: Job, code: int, stderr: Path) -> ToprError:
    count = processes_of(job)
    who = "its process" if count == 1 else f"one of its {count} processes"
    number = -code if code < 0 else code - 128
    number = number if number in set(signal.Signals) else 0  # 255 is no signal's
    if number == signal.SIGKILL:
        how = "was killed by signal 9 (SIGKILL), most likely for lack of memory (OOM)"
    elif number:
        how = f"was killed by signal {number} ({signal.Signals(number).name})"
    else:
        how = f"ended with exit code {code}"
    words = stderr.read_text(errors="replace").strip().splitlines()[-LAST_WORDS:]
    last = "; it said nothing" if not words else "; its last words:\n" + "\n".join(words)
    return ToprError(f"{job.name}: {who} {how}; nothing was written, and states are kept{last}")
