"""What training returns; apart from the trainer, so that a stand-in needs no torch."""

from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True)
class Trained:
    """What training left besides the checkpoint.

    `log` is a `training_log` table. `mean_clipped_ratio` is that of the first batch before any
    step, over the newest iteration's samples; None when it held none, or the objective reads no mu.
    """

    log: pl.DataFrame
    mean_clipped_ratio: float | None
