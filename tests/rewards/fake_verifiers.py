"""Verifier functions of a user, good and bad; imported by worker processes."""

import os
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
