"""Processes that judge (answer, gold) pairs and are killed when they take too long.

The processes are plain children with pipes (not `multiprocessing`), so that the pool works the same
in any thread, in a daemonic process, and under a `__main__` without a guard.
"""

import contextlib
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topr_pipeline.errors import ToprError

CHUNK = 32
"""Most pairs sent to a worker at once. Each has its own time limit all the same; a function that
takes batches has that limit for a batch, whose rows are tried one by one if it fails."""
CHUNK_CHARACTERS = 200_000
"""A chunk of several pairs is no longer than this."""
_SCRIPT = str(Path(__file__).with_name("worker.py"))
STARTUP_SECONDS = 120.0
GIVE_UP = 32
"""After so many kills without one verdict between them, the remaining pairs are not tried."""
MOST_KILLS = 500
"""Nor after so many kills in all, or a tenth of the pairs if that is more."""
NOT_TRIED = "not tried, after too many others were stopped"
FAILED_START = 8
"""A worker that does not start, after another has, counts as so many kills."""


@dataclass(frozen=True)
class Verdict:
    """What became of a pair. `lasting`: it would be the same on another day; `starved`: the machine

    was too busy to work on it for most of its time.
    """

    outcome: str
    answer: str | None = None
    detail: str | None = None
    seconds: float = 0.0
    lasting: bool = True
    starved: bool = False


@dataclass(frozen=True)
class Limits:
    """`seconds` of wall clock per pair, `memory_mib` and number of worker processes."""

    seconds: float = 5.0
    memory_mib: int = 2048
    workers: int = 1


def available_cpus() -> int:
    """The CPUs that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def judge(
    function: str, pairs: Sequence[tuple[str, str]], limits: Limits
) -> Generator[tuple[int, Verdict]]:
    """Index and verdict of each (answer, gold), as they come.

    `function` is `module:function`. Raises ToprError if it cannot be imported. A pair over its time
    or memory, or one that crashes its worker, is `unverifiable` and delays no other.
    """
    work = _Work(pairs, limits.workers)
    workers: list[_Worker] = []
    kills = total = 0
    started = False
    with selectors.DefaultSelector() as selector:
        try:
            while work.left() or any(w.chunk for w in workers):
                while len(workers) < limits.workers and work.left() > _idle(workers):
                    workers.append(_Worker(function, limits, selector))
                for worker in workers:
                    if worker.ready and not worker.chunk and work.left():
                        worker.send(work.take(), pairs)
                _wait(selector, workers)
                found, killed = _collect(workers, work, started)
                started = started or any(w.ready for w in workers)
                kills = 0 if len(found) > killed else kills + killed
                total += killed
                yield from found
                if kills >= GIVE_UP or total >= max(MOST_KILLS, len(pairs) // 10):
                    yield from _not_tried(work, workers)
        finally:
            for worker in workers:
                worker.close()


class _Work:
    """The pairs yet to be judged: those not yet sent, and chunks that came back."""

    def __init__(self, pairs: Sequence[tuple[str, str]], workers: int):
        self.pairs, self.share = pairs, 4 * workers
        self.at = 0
        self.again: deque[list[int]] = deque()

    def left(self) -> int:
        return len(self.pairs) - self.at + len(self.again)

    def take(self) -> list[int]:
        """The next chunk: smaller towards the end, so that slow pairs do not queue up in one."""
        if self.again:
            return self.again.popleft()
        size = min(CHUNK, -(-(len(self.pairs) - self.at) // self.share))
        chunk: list[int] = []
        characters = 0
        while len(chunk) < size and (not chunk or characters < CHUNK_CHARACTERS):
            characters += sum(map(len, self.pairs[self.at]))
            chunk.append(self.at)
            self.at += 1
        return chunk

    def give_back(self, chunk: list[int]) -> None:
        """What a worker left: each pair alone, so that a batch is tried row by row."""
        self.again.extend([at] for at in chunk)


def _idle(workers: Sequence["_Worker"]) -> int:
    return sum(not w.chunk for w in workers)


def _collect(
    workers: list["_Worker"], work: _Work, started: bool
) -> tuple[list[tuple[int, Verdict]], int]:
    """The verdicts that arrived, with those on pairs whose workers had to go, and the kills.

    A worker that does not start is an error, unless one of this run has `started` before.
    """
    found: list[tuple[int, Verdict]] = []
    killed = 0
    for worker in list(workers):
        found.extend(worker.verdicts())
        failure = worker.failure()
        if failure is None:
            continue
        if isinstance(failure, ToprError):
            if not started:
                raise failure
            killed += FAILED_START - 1
        workers.remove(worker)
        left = worker.close()
        killed += 1
        if isinstance(failure, Verdict) and left and not (worker.batch and len(left) > 1):
            found.append((left.pop(0), failure))
        work.give_back(left)
    return found, killed


def _wait(selector: selectors.BaseSelector, workers: Sequence["_Worker"]) -> None:
    """Read what arrives, and write what can be, until the next deadline of any worker."""
    nearest = min((w.deadline for w in workers), default=0.0)
    for key, events in selector.select(max(nearest - time.monotonic(), 0.001)):
        if events & selectors.EVENT_READ:
            key.data.read()
        else:
            key.data.write()


def _not_tried(work: _Work, workers: list["_Worker"]) -> Iterator[tuple[int, Verdict]]:
    for worker in workers:
        work.give_back(worker.close())
    workers.clear()
    while work.left():
        for index in work.take():
            yield index, Verdict("unverifiable", detail=NOT_TRIED, lasting=False)


class _Worker:
    """One process, the indices it has yet to answer, and until when it has to answer the next."""

    def __init__(self, function: str, limits: Limits, selector: selectors.BaseSelector):
        self.function, self.limits, self.selector = function, limits, selector
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the worker)
        self.process = subprocess.Popen(
            [sys.executable, "-P", _SCRIPT, function, str(limits.memory_mib), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=_environment(),
            start_new_session=True,
        )
        assert self.process.stdout is not None and self.process.stdin is not None
        self.input, self.output = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self.input, False)
        os.set_blocking(self.output, False)
        selector.register(self.output, selectors.EVENT_READ, self)
        self.secret = secrets.token_hex(8)
        os.write(self.input, f"{self.secret}\n".encode())
        self.unsent = memoryview(b"")
        self.chunk: list[int] = []
        self.answered = 0
        self.replies: list[dict[str, Any]] = []
        self.buffer = b""
        self.fatal: ToprError | None = None
        self.ready = self.ended = self.batch = self.garbled = False
        self.deadline = time.monotonic() + STARTUP_SECONDS

    def send(self, chunk: list[int], pairs: Sequence[tuple[str, str]]) -> None:
        self.chunk, self.answered = chunk, 0
        line = json.dumps([pairs[i] for i in chunk]) + "\n"
        self.start_clock()
        self.unsent = memoryview(line.encode())
        self.selector.register(self.input, selectors.EVENT_WRITE, self)
        self.write()

    def start_clock(self) -> None:
        self.deadline = time.monotonic() + self.limits.seconds
        self.worked = _seconds_worked(self.process.pid)

    def write(self) -> None:
        """Write as much as the process takes now: a stopped one may not stop this one."""
        with contextlib.suppress(BlockingIOError):
            try:
                while self.unsent:
                    self.unsent = self.unsent[os.write(self.input, self.unsent) :]
            except BrokenPipeError:  # it died: the end of its output says so too
                self.ended, self.unsent = True, self.unsent[:0]
            self.selector.unregister(self.input)

    def read(self) -> None:
        while block := _read(self.output):
            self.buffer += block
        self.ended |= block == b""
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            reply = _reply(line)
            if reply.pop("secret", None) != self.secret:
                self.garbled = True
                break
            self.replies.append(reply)

    def verdicts(self) -> Iterator[tuple[int, Verdict]]:
        replies, self.replies = self.replies, []
        for reply in replies:
            if "fatal" in reply:
                self.fatal = ToprError(
                    f"rewards.verifier: {self.function} cannot be used: importing it "
                    f"{reply['fatal']}; wanted is 'python: package.module:function'"
                )
                continue
            self.start_clock()
            if "ready" in reply:
                self.ready, self.batch = True, reply["batch"]
                continue
            if not self.chunk or reply.pop("at") != self.answered:
                self.garbled = True
                break
            self.answered += 1
            lasting = not reply.pop("failed", False)
            yield self.chunk.pop(0), Verdict(lasting=lasting, **reply)
        if self.ready and not self.chunk:
            self.deadline = float("inf")

    def failure(self) -> Verdict | ToprError | None:
        """Why this worker has to go, as the verdict of the pair at hand; None while it is well.

        A ToprError where it did not even start.
        """
        if self.fatal:
            return self.fatal
        if self.garbled:
            return Verdict("unverifiable", detail="wrote to the pool's pipe", lasting=False)
        if self.ended:
            code = self.process.wait()
            if not self.ready:
                return ToprError(
                    f"rewards: a worker for {self.function} stopped with exit code {code} before "
                    f"its first pair: {self._said()}; check its imports and rewards.memory_mib"
                )
            return Verdict("unverifiable", detail=f"crashed (exit code {code})", lasting=False)
        if time.monotonic() < self.deadline:
            return None
        if not self.ready:
            return ToprError(
                f"rewards: importing {self.function} took over {STARTUP_SECONDS:g} s; "
                "import what is slow inside the function"
            )
        seconds = self.limits.seconds
        detail = f"stopped after {seconds:g} s"
        starved = _seconds_worked(self.process.pid) - self.worked < seconds / 2
        return Verdict("unverifiable", None, detail, seconds, lasting=False, starved=starved)

    def _said(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()[-300:] or "it said nothing"

    def close(self) -> list[int]:
        """Kill the process and those it started; the pairs it had yet to answer."""
        left, self.chunk = self.chunk, []
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.unsent:
            self.selector.unregister(self.input)
        self.selector.unregister(self.output)
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            assert stream is not None
            stream.close()
        return left


def _seconds_worked(pid: int) -> float:
    """CPU time of a process; wall-clock time where the system does not tell."""
    try:
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return time.monotonic()
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def _reply(line: bytes) -> dict[str, Any]:
    """A line from the pipe; nothing if it is none of the worker's."""
    try:
        reply = json.loads(line)
    except ValueError:
        return {}
    return reply if isinstance(reply, dict) else {}


def _read(descriptor: int) -> bytes | None:
    """What can be read now: b"" at the end, None if nothing has come."""
    try:
        return os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return None


def _environment() -> dict[str, str]:
    """The parent's, with its import path, and one thread per worker."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"), "1")
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    return os.environ | threads | {"PYTHONPATH": path}
