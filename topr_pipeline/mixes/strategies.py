"""Curation strategies that look at one prompt at a time: lazy frame in, lazy frame out.

A step sees rows of whole prompts of one iteration and drops some of them. Columns: `prompt` (a
number; a prompt's rows stand together, in the order of sample_index), sample_index, outcome, reward
(never null), and those that `READS` names. "First" means lowest sample_index, so the result does
not depend on the order in which samples finished.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
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

    Texts are compared by hash. A row without an answer is no one's duplicate.
    """
    same = pl.col(SAME[step.by])
    early = pl.map_batches(
        ["prompt", same.fill_null(0)],
        lambda columns: _early(*columns, keep=step.keep),
        return_dtype=pl.Boolean,
    )
    return rows.filter(early | same.is_null())


def _early(prompt_N: pl.Series, hash_N: pl.Series, keep: int) -> pl.Series:
    """Is the row among the first `keep` of its prompt with that hash?

    One sort of numbers that are nearly sorted already, of prompt and as much of the hash as there
    is room for (more than 40 bits): many times faster than a window over two columns.
    """
    number_N, count = prompt_N.to_numpy().astype(np.uint64), len(prompt_N)
    bits = np.uint64(int(number_N[-1]).bit_length() if count else 0)
    both_N = (number_N << (np.uint64(64) - bits)) | (hash_N.to_numpy() >> bits)
    order_N = np.argsort(both_N, kind="stable")
    new_N = np.diff(both_N[order_N], prepend=~both_N[order_N[:1]]) != 0
    start_N = np.maximum.accumulate(np.where(new_N, np.arange(count), 0))
    early_N = np.empty(count, bool)
    early_N[order_N] = np.arange(count) - start_N < keep
    return pl.Series(early_N)


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
