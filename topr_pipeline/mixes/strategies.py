"""Curation strategies: each is one step over rewarded rows, lazy frame in, lazy frame out.

A step sees the narrow columns prompt_id, sample_index, outcome and reward, sorted by (prompt_id,
sample_index), drops rows and keeps the order. "First" means lowest sample_index, so the result does
not depend on the order in which samples finished.
"""

from collections.abc import Callable
from typing import Any

import polars as pl

from topr_pipeline.experiment import AnnaKarenina, Uniform


def uniform(rows: pl.LazyFrame, step: Uniform) -> pl.LazyFrame:
    """The first `samples_per_prompt` rows of each prompt; all when that is null."""
    return rows.filter(_among_first(pl.col("prompt_id").is_not_null(), step.samples_per_prompt))


def anna_karenina(rows: pl.LazyFrame, step: AnnaKarenina) -> pl.LazyFrame:
    """Per prompt the first `correct` correct rows and the first `incorrect` others.

    The paper's Anna Karenina sampling: correct solutions are all alike, each wrong one is wrong in
    its own way. "Others" are all outcomes but correct.
    """
    right = pl.col("outcome") == "correct"
    return rows.filter(_among_first(right, step.correct) | _among_first(~right, step.incorrect))


STRATEGIES: dict[str, Callable[[pl.LazyFrame, Any], pl.LazyFrame]] = {
    "uniform": uniform,
    "anna_karenina": anna_karenina,
}


def _among_first(which: pl.Expr, limit: int | None) -> pl.Expr:
    """Is the row one of `which`, and among the first `limit` such rows of its prompt?

    One running count over the sorted rows, less its value where the prompt starts: several times
    faster than a window per prompt.
    """
    if limit is None:
        return which
    counted = which.cast(pl.Int64).cum_sum()
    starts = pl.col("prompt_id").ne_missing(pl.col("prompt_id").shift())
    at_start = pl.when(starts).then(counted - which.cast(pl.Int64)).forward_fill()
    return which & (counted - at_start <= limit)
