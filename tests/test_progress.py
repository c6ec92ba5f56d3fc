import io
import sys

import pytest

from topr_pipeline import progress
from topr_pipeline.progress import Shown


class Clock:
    """`time.monotonic` that moves when told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 100.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


def test_the_log_counts_neither_what_was_there_before_nor_the_loading(monkeypatch):
    clock, lines = Clock(monkeypatch), []
    with Shown("toy", "samples", lines.append, every=10) as shown:
        shown(600, 1000)
        clock.now += 50  # the model loads
        shown(600, 1000)
        clock.now += 10
        shown(700, 1000, tokens_per_s=123.456)
    assert lines[-1] == "toy: 700/1000 samples, 10/s, tokens/s 123.5, 30 s left"


def test_the_terminal_shows_both_rates_and_what_is_left(monkeypatch):
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stderr)
    with Shown("toy", "samples") as shown:
        shown(600, 1000)
        shown(800, 1000, tokens_per_s=123.456)
        assert shown.bar is not None
        shown.bar.refresh()  # tqdm draws ten times a second at most
    last = stderr.getvalue().split("\r")[-1]
    assert "800/1000" in last
    assert " samples/s" in last
    assert "tokens/s=123.5" in last
