"""Rows of earlier iterations in a mix: how many of each age, and which first.

Off-policy correctness needs nothing more: each row keeps the log mu that it was sampled with, and
the objective tapers pi/mu (arXiv 2503.14286, section 3).
"""

from collections.abc import Mapping

import numpy as np
import polars as pl

from topr_pipeline.curation import Replay
from topr_pipeline.mixes.pool import Pool

WEIGHT = "weight"


def quotas(fresh: int, available: Mapping[int, int], replay: Replay) -> dict[int, int]:
    """How many rows to draw of each age (in iterations), given those that there are.

    fresh * decay^age of each, or all where there are fewer. Where these are more than `max_share`
    of the mix together, all are cut by the same factor; fractions are dropped.

    >>> quotas(100, {1: 100, 2: 10}, Replay(iterations=2, decay=0.5, max_share=0.5))
    {1: 50, 2: 10}
    """
    wanted = {age: min(n, fresh * replay.decay**age) for age, n in available.items()}
    most = fresh * replay.max_share / (1 - replay.max_share)
    scale = min(1.0, most / total) if (total := sum(wanted.values())) else 0.0
    # A hair is added, so that 0.3 / 0.1 is not less than 3.
    return {age: int(n * scale + 1e-6) for age, n in wanted.items()}


def weights(rows: pl.DataFrame, replay: Replay) -> pl.DataFrame:
    """`rows` (all rewarded rows of whole prompts) with what their priority needs, in `weight`.

    advantage: |R - mean R of the prompt in its iteration|, so that the one right answer to a hard
    problem comes first, and prompts whose samples all got the same come last.
    unsolved: 1 - solve rate, until a newer iteration is known (see `unsolved`).
    """
    match replay.priority:
        case "none":
            return rows
        case "unsolved":
            return rows.with_columns((1 - pl.col("solve_rate")).alias(WEIGHT))
        case "advantage":
            prompt_N, reward_N = rows["prompt"].to_numpy(), rows["reward"].to_numpy()
            sum_P, count_P = np.bincount(prompt_N, reward_N), np.bincount(prompt_N)
            mean_N = sum_P[prompt_N] / count_P[prompt_N]
            surprise_N = np.abs(reward_N - mean_N)
            rounded_N = surprise_N < 1e-9 * np.abs(reward_N)  # 0.1 + 0.1 + 0.1 is not 0.3
            return rows.with_columns(pl.Series(WEIGHT, np.where(rounded_N, 0.0, surprise_N)))


def unsolved(pool: Pool, newer: pl.DataFrame) -> Pool:
    """The pool, weighted by the newest solve rate of each prompt.

    `newer` has the columns `hash` (of prompt_id) and solve_rate, from newer iterations; a prompt
    that none of them sampled keeps its weight.
    """

    def weighted(frame: pl.DataFrame) -> pl.DataFrame:
        hashed = frame.with_columns(hash=pl.col("prompt_id").hash()).select("hash", WEIGHT)
        found = hashed.join(newer, on="hash", how="left", maintain_order="left")
        weight = (1 - pl.col("solve_rate")).fill_null(pl.col(WEIGHT))
        return frame.with_columns(found.select(weight.alias(WEIGHT)).to_series())

    return pool.replaced(weighted)


def newest_rates(newer: pl.DataFrame, rates: pl.DataFrame) -> pl.DataFrame:
    """`newer` with the prompts of an older iteration that it does not know."""
    return pl.concat([newer, rates.join(newer, on="hash", how="anti")])


RATES = pl.Schema({"hash": pl.UInt64(), "solve_rate": pl.Float64()})
