"""Which of a prompt's answers is given out, and is it right: by votes, weighted votes, or a score.

Rows have prompt_id, sample_index, answer and outcome, for weights and scores `score` too, and are
sorted by (prompt_id, sample_index). Each function returns prompt_id and `right` of the prompts that
have k rows or more.
"""

import polars as pl

from topr_pipeline.errors import ToprError


def majority(rows: pl.DataFrame, k: int | None, weight: str | None = None) -> pl.DataFrame:
    """Is the answer that most of a prompt's first k rows (None: all) give right? `right` is a bool.

    With `weight` the sums of that column are compared instead of the numbers of rows: weighted
    self-consistency. Answers are compared as text. Rows without an answer, or
    without a weight, do not vote, and without any vote the prompt is wrong. A tie goes to the
    answer that was given first (lowest sample_index). An answer is correct if one of its samples
    was verified as correct. The samples being exchangeable, those first k are as good as any.
    """
    first = rows.with_columns(turn=pl.int_range(pl.len()).over("prompt_id"))
    if k is not None:
        first = first.filter(pl.len().over("prompt_id") >= k, pl.col("turn") < k)
    # Rounded, for sums that differ in the last bits are a tie.
    votes = pl.len() if weight is None else pl.col(weight).sum().round(9)
    winners = (
        first.drop_nulls(["answer"] if weight is None else ["answer", weight])
        .group_by("prompt_id", "answer")
        .agg(votes=votes, turn=pl.col("turn").min(), right=(pl.col("outcome") == "correct").any())
        .sort("prompt_id", "votes", "turn", descending=[False, True, False])
        .unique("prompt_id", keep="first", maintain_order=True)
    )
    return (
        first.select(pl.col("prompt_id").unique())
        .join(winners.select("prompt_id", "right"), on="prompt_id", how="left")
        .with_columns(pl.col("right").fill_null(False))
    )


def best_of(rows: pl.DataFrame, k: int) -> pl.DataFrame:
    """How likely is the row of highest `score` among k of a prompt's n rows correct?

    The mean over all subsets of k rows, exactly: the row of rank i (from 0, best first) is the best
    of C(n-1-i, k-1) of the C(n, k) subsets. Rows of equal score share their chances; a row without
    a score comes after all that have one. `right` lies in [0, 1]. Where the score is the verdict
    itself it is pass@k.
    """
    ranked = (
        rows.filter(pl.len().over("prompt_id") >= k)
        .sort("prompt_id", "score", descending=[False, True], nulls_last=True)
        .with_columns(
            n=pl.len().over("prompt_id").cast(pl.Float64),
            rank=pl.int_range(pl.len()).over("prompt_id").cast(pl.Float64),
            right=(pl.col("outcome") == "correct").mean().over("prompt_id", "score"),
        )
    )
    chance = k / pl.col("n")
    for j in range(1, k):
        left = (pl.col("n") - pl.col("rank") - j).clip(lower_bound=0)
        chance = chance * left / (pl.col("n") - j)
    return ranked.group_by("prompt_id").agg(right=(chance * pl.col("right")).sum())


def check_scores(rows: pl.DataFrame) -> None:
    """Raises ToprError for a `score` that is no weight: below 0, infinite or NaN."""
    value = pl.col("score").cast(pl.Float64)
    wrong = rows.filter(~(value.is_finite() & (value >= 0)))
    if wrong.height:
        first = wrong.row(0, named=True)
        raise ToprError(
            f"{wrong.height} of {rows.height} scores are no weights: the first is "
            f"{first['score']} of prompt_id {first['prompt_id']!r}, sample_index "
            f"{first['sample_index']}; finite numbers from 0 on are wanted (null: no score), "
            "log-probs as exp(score)"
        )
