"""A worker process: judges pairs that it reads from its standard input, one JSON line each way.

Started by `pool` as `python worker.py MODULE:FUNCTION MEMORY_MIB PARENT`. It may hang, grow or
crash; the pool kills it then and starts another. The first line of its input is a secret with which
it marks every reply, so that nothing else that gets hold of the pipe is taken for one.
"""

import contextlib
import importlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

OUTCOMES = ("correct", "incorrect", "invalid", "truncated", "unverifiable")
LONGEST_DETAIL = 300
_PID = os.getpid()
UNVERIFIABLE = "unverifiable"


def main() -> None:
    """Import the function, say so, and answer requests until the input ends."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    requests = os.fdopen(os.dup(0), "r")
    _point_at_null(0)  # nothing that a verifier runs may read the requests
    os.dup2(2, 1)
    secret = requests.readline().strip()
    path, memory_mib, parent = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    _die_with(parent)
    _limit_memory(memory_mib)
    try:
        function = _imported(path)
    except BaseException as error:  # whatever an import may do, the pool has to hear of it
        _say(replies, secret, {"fatal": _described(error)})
        return
    batch = bool(getattr(function, "batch", False))
    _say(replies, secret, {"ready": True, "batch": batch})
    _point_at_null(1, 2)  # nothing that it prints may fill a pipe or a disk
    for line in requests:
        pairs = json.loads(line)
        found = judged_batch(function, pairs) if batch else judged(function, pairs)
        for at, reply in enumerate(found):
            _say(replies, secret, reply | {"at": at})


def judged(function: Callable[..., Any], pairs: list[list[str]]) -> Iterator[dict[str, Any]]:
    """One reply per (answer, gold)."""
    for answer, gold in pairs:
        started = time.monotonic()
        try:
            reply = verdict(function(answer, gold))
        except BaseException as error:  # also KeyboardInterrupt, SystemExit
            reply = _failed(error)
        yield reply | {"seconds": time.monotonic() - started}


def judged_batch(function: Callable[..., Any], pairs: list[list[str]]) -> Iterator[dict[str, Any]]:
    """One reply per pair; where the batch fails as a whole, each of its rows is tried alone."""
    started = time.monotonic()
    try:
        results = list(function([a for a, _ in pairs], [g for _, g in pairs]))
        if len(results) != len(pairs):
            raise ValueError(f"returned {len(results)} results for {len(pairs)} completions")
        replies = [verdict(result) for result in results]
    except BaseException as error:  # also KeyboardInterrupt, SystemExit
        if len(pairs) > 1:
            for pair in pairs:
                yield from judged_batch(function, [pair])
            return
        replies = [_failed(error)]
    seconds = (time.monotonic() - started) / len(pairs)
    yield from (reply | {"seconds": seconds} for reply in replies)


def verdict(result: Any) -> dict[str, Any]:
    """What a verifier function returned: True or False, 1 or 0, an outcome, or (that, answer)."""
    answer = None
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], str | None):
        result, answer = result
        answer = answer and answer.encode("utf-8", "replace").decode()
    if isinstance(result, str) and result in OUTCOMES:
        return {"outcome": result, "answer": answer}
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        number = math.nan if isinstance(result, str | None) else float(result)
        if number in (0.0, 1.0):
            return {"outcome": "correct" if number else "incorrect", "answer": answer}
    detail = f"returned {result!r}, which is neither True, False, 1, 0 nor an outcome"
    return {"outcome": UNVERIFIABLE, "answer": answer, "detail": _short(detail)}


def _failed(error: BaseException) -> dict[str, Any]:
    return {"outcome": UNVERIFIABLE, "detail": _described(error), "failed": True}


def _described(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "needed more memory than its limit"
    try:
        return _short(f"raised {type(error).__name__}: {error}")
    except Exception:  # an error that cannot even be printed
        return f"raised {type(error).__name__}"


def _short(detail: str) -> str:
    return detail[:LONGEST_DETAIL].encode("utf-8", "replace").decode()


def _imported(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    function = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(f"{path} is a {type(function).__name__}, not a function")
    prepare = getattr(function, "prepare", None)
    if prepare is not None:
        prepare()
    return function


def _say(replies: TextIO, secret: str, message: dict[str, Any]) -> None:
    if os.getpid() != _PID:  # a copy that the verifier made and that came back
        os._exit(0)
    replies.write(json.dumps(message | {"secret": secret}) + "\n")


def _point_at_null(*descriptors: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)


def _limit_memory(mib: int) -> None:
    """Bound the address space; systems without this limit do without."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if mib:
            resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20))


def _die_with(parent: int) -> None:
    """On Linux, be killed with the thread that started this one, even in the midst of work.

    It is the thread that runs `pool.judge`, and so needs this process no longer than it lives.
    """
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that call
        os._exit(1)


if __name__ == "__main__":
    main()
