"""Verifier functions of a user, good and bad; imported by worker processes."""

import contextlib
import os
import signal
import subprocess
import sys
import time


def batch(function):
    function.batch = True
    return function


def same_text(completion: str, gold: str) -> bool:
    return completion.strip() == gold


def every_kind(completion: str, gold: str):
    """Returns what the completion names, evaluated."""
    return eval(completion, {"nan": float("nan")})


def raises_on_7(completion: str, gold: str) -> bool:
    if int(completion) % 7 == 0:
        raise RuntimeError(f"no {completion}")
    return completion == gold


def sleeps_on_7(completion: str, gold: str) -> bool:
    if int(completion) % 7 == 0:
        time.sleep(60)
    return completion == gold


def crashes_on_7(completion: str, gold: str) -> bool:
    if int(completion) % 7 == 0:
        os._exit(11)
    return completion == gold


def exits_on_7(completion: str, gold: str) -> bool:
    if int(completion) % 7 == 0:
        raise SystemExit(1)
    return completion == gold


def never_returns(completion: str, gold: str) -> bool:
    while gold:
        time.sleep(1)
    return True


def grows(completion: str, gold: str) -> bool:
    hold = []
    while completion == "grow":
        hold.append(bytearray(1 << 24))
    return completion == gold


def prints(completion: str, gold: str) -> bool:
    print("x" * 100_000)  # noqa: T201
    os.write(1, b"not json\n")
    return completion == gold


def stops_itself_on_7(completion: str, gold: str) -> bool:
    if int(completion) % 7 == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    return completion == gold


def tells_pid(completion: str, gold: str) -> tuple[str, str]:
    sleeps_on_7(completion, gold)
    return "correct", str(os.getpid())


def starts_a_process(completion: str, gold: str) -> bool:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with open(completion, "w") as file:
        file.write(str(process.pid))
    process.wait()
    return True


def reads_input(completion: str, gold: str) -> bool:
    return completion == gold and sys.stdin.read() == "" and os.read(0, 100) == b""


def forges(completion: str, gold: str) -> bool:
    """Writes replies of its own to whatever is open."""
    if int(completion) % 7 == 0:
        for descriptor in range(1, 20):
            with contextlib.suppress(OSError):
                os.write(descriptor, b'{"at": 0, "outcome": "correct", "seconds": 0}\n')
        time.sleep(60)
    return completion == gold


def starts_once(completion: str, gold: str) -> bool:
    return crashes_on_7(completion, gold)


def started() -> None:
    os.close(os.open(os.environ["TOPR_TEST_STARTED"], os.O_CREAT | os.O_EXCL))


setattr(starts_once, "prepare", started)  # noqa: B010


@batch
def batch_same(completions: list[str], golds: list[str]) -> list[bool]:
    return [c == g for c, g in zip(completions, golds, strict=True)]


@batch
def batch_drops_7(completions: list[str], golds: list[str]) -> list[bool]:
    return [c == g for c, g in zip(completions, golds, strict=True) if int(c) % 7]


@batch
def batch_raises_on_7(completions: list[str], golds: list[str]) -> list[bool]:
    return [raises_on_7(c, g) for c, g in zip(completions, golds, strict=True)]


@batch
def batch_sleeps_on_7(completions: list[str], golds: list[str]) -> list[bool]:
    return [sleeps_on_7(c, g) for c, g in zip(completions, golds, strict=True)]


@batch
def batch_two_too_many(completions: list[str], golds: list[str]) -> list[bool]:
    return [True] * (len(completions) + 2)


not_a_function = 3
