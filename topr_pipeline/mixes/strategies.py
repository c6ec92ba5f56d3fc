"""Curation strategies that look at one prompt at a time: lazy frame in, lazy frame out.

A step sees rows of whole prompts of one iteration and drops some of them. Columns: `prompt` (a
number; a prompt's rows stand together, in the order of sample_index), sample_index, outcome, reward
(never null), and those that `READS` names. "First" means lowest sample_index, so the result does
not depend on the order in which samples finished.
"""

from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from topr_pipeline.curation import (
    AnnaKarenina,
    Dedupe,
    Difficulty,
    Length,
    MixStep,
    Outcome,
    Sql,
    Uniform,
)
from topr_pipeline.mixes.sql import view_of

SAME: Mapping[str, str] = {
    "completion": "completion",
    "wording": "wording",
    "answer": "same_answer",
}
"""What `dedupe.by` compares: columns of hashes."""


def reads(step: MixStep) -> set[str]:
    """The columns that a step needs besides prompt, sample_index, outcome and reward."""
    match step:
        case Dedupe():
            return {SAME[step.by]}
        case Difficulty():
            return {"solve_rate"}
        case Length():
            return {"length"}
        case Sql():
            return set(view_of(step.sql)) - {"iteration"}
    return set()


def uniform(rows: pl.LazyFrame, step: Uniform) -> pl.LazyFrame:
    """The first `samples_per_prompt` rows of each prompt; all when that is null."""
    return rows.filter(_among_first(pl.col("prompt").is_not_null(), step.samples_per_prompt))


def anna_karenina(rows: pl.LazyFrame, step: AnnaKarenina) -> pl.LazyFrame:
    """Per prompt the first `correct` correct rows and the first `incorrect` others.

    The paper's Anna Karenina sampling: correct solutions are all alike, each wrong one is wrong in
    its own way. "Others" are all outcomes but correct.
    """
    right = pl.col("outcome") == "correct"
    return rows.filter(_among_first(right, step.correct) | _among_first(~right, step.incorrect))


def difficulty(rows: pl.LazyFrame, step: Difficulty) -> pl.LazyFrame:
    """The rows of prompts whose solve rate is in the range.

    The solve rate is the share of correct ones among all of the prompt's verified samples of this
    iteration, whatever earlier steps dropped.
    """
    return rows.filter(pl.col("solve_rate").is_between(*step.solve_rate))


def dedupe(rows: pl.LazyFrame, step: Dedupe) -> pl.LazyFrame:
    """Per prompt the first `keep` rows of each completion, wording or answer.

    Texts are compared by 64-bit hash. A row without an answer is no one's duplicate.
    """
    same = pl.col(SAME[step.by])
    if step.keep == 1:
        # A set of numbers: several times faster than a window over two columns.
        spread = pl.col("prompt").cast(pl.UInt64) * pl.lit(0x9E3779B97F4A7C15, pl.UInt64)
        early = (spread ^ same).is_first_distinct()
    else:
        early = pl.int_range(pl.len()).over("prompt", same) < step.keep
    return rows.filter(early | same.is_null())


def length(rows: pl.LazyFrame, step: Length) -> pl.LazyFrame:
    """The rows with `min_tokens` to `max_tokens`; with `over: cap`, longer ones too.

    What is over the cap is cut off when the mix is written: the row then is a shorter completion
    with its own log mu, and the reward of the whole one.
    """
    long = pl.col("length")
    kept = rows.filter(long >= step.min_tokens)
    if step.max_tokens is None:
        return kept
    if step.over == "cap":
        return kept.with_columns(length=pl.min_horizontal(long, pl.lit(step.max_tokens, pl.Int32)))
    return kept.filter(long <= step.max_tokens)


def outcome(rows: pl.LazyFrame, step: Outcome) -> pl.LazyFrame:
    """The rows of these outcomes; truncated is an outcome of its own."""
    return rows.filter(pl.col("outcome").is_in(list(step.outcomes)))


STRATEGIES: Mapping[str, Callable[[pl.LazyFrame, Any], pl.LazyFrame]] = {
    "uniform": uniform,
    "anna_karenina": anna_karenina,
    "difficulty": difficulty,
    "dedupe": dedupe,
    "length": length,
    "outcome": outcome,
}


def _among_first(which: pl.Expr, limit: int | None) -> pl.Expr:
    """Is the row one of `which`, and among the first `limit` such rows of its prompt?

    One running count over the sorted rows, less its value where the prompt starts: several times
    faster than a window per prompt.
    """
    if limit is None:
        return which
    counted = which.cast(pl.Int64).cum_sum()
    starts = pl.col("prompt").ne_missing(pl.col("prompt").shift())
    at_start = pl.when(starts).then(counted - which.cast(pl.Int64)).forward_fill()
    return which & (counted - at_start <= limit)
