"""Progress of long work: stages report, whoever runs them shows."""

import logging
import sys
import time
from collections.abc import Callable
from typing import Protocol

from tqdm import tqdm


class Progress(Protocol):
    """Called by a stage with the work done so far, the whole, and figures worth showing."""

    def __call__(self, done: int, total: int, **figures: float) -> None: ...


def quiet(done: int, total: int, **figures: float) -> None:
    """Show nothing."""


class Shown:
    """A bar with rate and ETA in a terminal, and a log line every `every` seconds.

    Use as a context manager: the bar is closed at the end, also after an error. Rates count from
    the last call before work was done: neither what was done before nor a model's loading counts.
    """

    def __init__(
        self, what: str, unit: str, log: Callable[[str], None] = logging.info, every: float = 10.0
    ):
        self.what, self.unit, self.log, self.every = what, unit, log, every
        self.started = self.logged = time.monotonic()
        self.bar: tqdm | None = None

    def __enter__(self) -> "Shown":
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def __call__(self, done: int, total: int, **figures: float) -> None:
        if self.bar is None:
            self.bar = tqdm(
                total=total,
                initial=done,
                desc=self.what,
                unit=f" {self.unit}",
                disable=not sys.stderr.isatty(),
                dynamic_ncols=True,
            )
            self.first = done
        now = time.monotonic()
        if done == self.first:
            self.started = self.logged = now
            self.bar.unpause()  # tqdm's own clock
        said = {k.replace("_per_", "/"): f"{v:.4g}" for k, v in figures.items()}
        self.bar.set_postfix(said, refresh=False)
        self.bar.update(done - self.bar.n)
        if now - self.logged >= self.every:
            self.logged = now
            rate = (done - self.first) / max(now - self.started, 1e-9)
            eta = f", {(total - done) / rate:.0f} s left" if rate > 0 else ""
            more = "".join(f", {k} {v}" for k, v in said.items())
            self.log(f"{self.what}: {done}/{total} {self.unit}, {rate:.3g}/s{more}{eta}")
