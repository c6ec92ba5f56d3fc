"""Processes that judge (answer, gold) pairs and are killed when they take too long.

The processes are plain children with pipes (not `multiprocessing`), so that the pool works the same
in any thread, in a daemonic process, and under a `__main__` without a guard.
"""

import contextlib
import json
import os
import selectors
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
"""Pairs sent to a worker at once. Each has its own time limit all the same; a function that takes
batches has that limit for a batch, whose rows are tried one by one if it fails."""
_SCRIPT = str(Path(__file__).with_name("worker.py"))
STARTUP_SECONDS = 120.0
GIVE_UP = 32
"""After so many kills without one verdict between them, the remaining pairs are not tried."""
MOST_KILLS = 500
"""Nor after so many kills in all, or a tenth of the pairs if that is more."""


@dataclass(frozen=True)
class Verdict:
    """What became of a pair. `lasting`: it would be the same on another day."""

    outcome: str
    answer: str | None = None
    detail: str | None = None
    seconds: float = 0.0
    lasting: bool = True


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
    size = min(CHUNK, -(-len(pairs) // (4 * limits.workers)))
    starts = range(0, len(pairs), max(size, 1))
    queue = deque(list(range(at, min(at + size, len(pairs)))) for at in starts)
    workers: list[_Worker] = []
    kills = total = 0
    with selectors.DefaultSelector() as selector:
        try:
            while queue or any(w.chunk for w in workers):
                while queue and len(workers) < min(limits.workers, len(queue) + len(workers)):
                    workers.append(_Worker(function, limits, selector))
                for worker in workers:
                    if worker.ready and not worker.chunk and queue:
                        worker.send(queue.popleft(), pairs)
                _wait(selector, workers)
                found, killed = _collect(workers, queue)
                kills = 0 if len(found) > killed else kills + killed
                total += killed
                yield from found
                if kills >= GIVE_UP or total >= max(MOST_KILLS, len(pairs) // 10):
                    yield from _not_tried(queue, workers)
        finally:
            for worker in workers:
                worker.close()


def _collect(
    workers: list["_Worker"], queue: deque[list[int]]
) -> tuple[list[tuple[int, Verdict]], int]:
    """The verdicts that arrived, with those on pairs whose workers had to go, and how many did."""
    found: list[tuple[int, Verdict]] = []
    killed = 0
    for worker in list(workers):
        found.extend(worker.verdicts())
        failure = worker.failure()
        if failure is None:
            continue
        workers.remove(worker)
        left = worker.close()
        killed += 1
        if left and not (worker.batch and len(left) > 1):
            found.append((left.pop(0), failure))
        queue.extendleft([at] for at in reversed(left))
    return found, killed


def _wait(selector: selectors.BaseSelector, workers: Sequence["_Worker"]) -> None:
    """Read what arrives until the next deadline of any worker."""
    nearest = min((w.deadline for w in workers), default=0.0)
    for key, _ in selector.select(max(nearest - time.monotonic(), 0.001)):
        key.data.read()


def _not_tried(queue: deque[list[int]], workers: list["_Worker"]) -> Iterator[tuple[int, Verdict]]:
    detail = "not tried, after too many others were stopped"
    for worker in workers:
        queue.append(worker.close())
    workers.clear()
    while queue:
        for index in queue.popleft():
            yield index, Verdict("unverifiable", detail=detail, lasting=False)


class _Worker:
    """One process, the indices it has yet to answer, and until when it has to answer the next."""

    def __init__(self, function: str, limits: Limits, selector: selectors.BaseSelector):
        self.function, self.limits, self.selector = function, limits, selector
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the worker)
        self.process = subprocess.Popen(
            [sys.executable, "-P", _SCRIPT, function, str(limits.memory_mib)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=_environment(),
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        selector.register(self.process.stdout, selectors.EVENT_READ, self)
        self.chunk: list[int] = []
        self.replies: list[dict[str, Any]] = []
        self.buffer = b""
        self.ready = self.ended = self.batch = False
        self.deadline = time.monotonic() + STARTUP_SECONDS

    def send(self, chunk: list[int], pairs: Sequence[tuple[str, str]]) -> None:
        assert self.process.stdin is not None
        self.chunk = chunk
        line = json.dumps([pairs[i] for i in chunk]) + "\n"
        self.deadline = time.monotonic() + self.limits.seconds
        try:
            self.process.stdin.write(line.encode())
            self.process.stdin.flush()
        except OSError:  # it died between two pairs: the end of its output says so too
            self.ended = True

    def read(self) -> None:
        assert self.process.stdout is not None
        while block := _read(self.process.stdout.fileno()):
            self.buffer += block
        self.ended |= block == b""
        *lines, self.buffer = self.buffer.split(b"\n")
        self.replies.extend(json.loads(line) for line in lines)

    def verdicts(self) -> Iterator[tuple[int, Verdict]]:
        replies, self.replies = self.replies, []
        for reply in replies:
            if "fatal" in reply:
                raise ToprError(
                    f"rewards.verifier: {self.function} cannot be used: importing it "
                    f"{reply['fatal']}; wanted is 'python: package.module:function'"
                )
            self.deadline = time.monotonic() + self.limits.seconds
            if "ready" in reply:
                self.ready, self.batch = True, reply["batch"]
                continue
            lasting = not reply.pop("failed", False)
            yield self.chunk.pop(0), Verdict(lasting=lasting, **reply)
        if self.ready and not self.chunk:
            self.deadline = float("inf")

    def failure(self) -> Verdict | None:
        """Why this worker has to go, as the verdict of the pair at hand; None while it is well."""
        if self.ended:
            code = self.process.wait()
            if not self.ready:
                raise ToprError(
                    f"rewards: a worker for {self.function} stopped with exit code {code} before "
                    f"its first pair: {self._said()}; check its imports and rewards.memory_mib"
                )
            return Verdict("unverifiable", detail=f"crashed (exit code {code})", lasting=False)
        if time.monotonic() < self.deadline:
            return None
        if not self.ready:
            raise ToprError(
                f"rewards: importing {self.function} took over {STARTUP_SECONDS:g} s; "
                "import what is slow inside the function"
            )
        seconds = self.limits.seconds
        detail = f"stopped after {seconds:g} s"
        return Verdict("unverifiable", detail=detail, seconds=seconds, lasting=False)

    def _said(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()[-300:] or "it said nothing"

    def close(self) -> list[int]:
        """Kill the process; the pairs it had yet to answer."""
        left, self.chunk = self.chunk, []
        for stream in (self.process.stdin, self.process.stdout):
            if stream is None or stream.closed:
                continue
            if stream is self.process.stdout:
                self.selector.unregister(stream)
            with contextlib.suppress(OSError):  # unsent input of a dead process
                stream.close()
        self.process.kill()
        self.process.wait()
        self.errors.close()
        return left


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
