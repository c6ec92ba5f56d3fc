"""No text takes long: read here it is short work, and what is longer a worker is stopped at."""

import time

import polars as pl
import pytest

from tests.rewards.strategies import KNOTS, LONG, long
from topr_pipeline.experiment import Rewards
from topr_pipeline.rewards import grade, grading, latex, verifiers

GENEROUS = 2.0
"""Seconds; what is tested takes a hundredth to a fifth of one."""
NAMES = ("gsm8k", "math", "exact", "choice", "verdict")


@pytest.mark.parametrize("name", LONG)
def test_the_longest_text_read_here_is_short_work_for_each_verifier(name):
    text = long(name, grading.LONG)
    for verifier in map(verifiers.find, NAMES):
        started = time.monotonic()
        answer = verifier.extract(text)
        if answer is not None:
            verifier.compare("8641", answer)
        assert time.monotonic() - started < GENEROUS, verifier.name


@pytest.mark.parametrize("knot", KNOTS)
def test_no_short_answer_is_long_work(knot):
    started = time.monotonic()
    for gold in ("8641", "\\sqrt{8641}", "x^2+8641", "(8641,3)", "x=8641", knot + "+8641"):
        assert latex.quickly(gold, knot) is not True
        assert latex.quickly(knot, gold) is not True
    assert time.monotonic() - started < GENEROUS


@pytest.mark.parametrize("characters", [100_000, 1_000_000])
def test_longer_texts_are_read_within_the_limit_or_stopped(characters):
    texts = [long(name, characters) for name in ("combining marks", "nested boxes", "markers")]
    texts.append("x" * characters + "The answer is $8641$.")
    rows = pl.DataFrame({"text": texts, "gold": "8641", "finish_reason": "stop"})
    spec = Rewards(verifier="math", timeout_seconds=3, workers=1)
    table, report = grade(rows, spec)
    assert table["outcome"].to_list()[-1] == "correct"
    assert table["answer"].to_list()[-1] == "8641"
    assert "correct" not in table["outcome"].to_list()[:-1]
    assert max(pair.seconds for pair in report.slowest) < spec.timeout_seconds + 1


def test_a_long_text_has_the_outcome_of_a_short_one(monkeypatch):
    texts = ["The answer is 5", "The answer is 6", "none", None, "none"]
    golds = ["5", "5", "5", "5", "no number"]
    rows = pl.DataFrame({"text": texts, "gold": golds, "finish_reason": "stop"})
    here, _ = grade(rows, Rewards(workers=1))
    monkeypatch.setattr(grading, "LONG", 3)
    there, report = grade(rows, Rewards(workers=1))
    assert here["outcome"].to_list()[:4] == there["outcome"].to_list()[:4]
    assert there["outcome"].to_list()[4] == "unverifiable"
    assert here["answer"].equals(there["answer"])
    assert report.judged == 4
