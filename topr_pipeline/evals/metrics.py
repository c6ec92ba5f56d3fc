"""Scores of a checkpoint, each with a percentile bootstrap interval over prompts.

A metric is first one value per prompt and then their mean over prompts, so that every prompt counts
once. `unverifiable` samples say nothing about the policy: they are dropped before anything is
counted, and only their share is reported. A prompt that has fewer than k samples left counts in no
metric of that k; the column n says how many prompts a metric rests on.
"""

import math

import numpy as np
import polars as pl

from topr_pipeline import tables
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Evaluation
from topr_pipeline.mixes.pairing import KEY, paired

_BLOCK = 1 << 22
"""Prompts drawn at a time by the bootstrap: bounds its memory at about 100 MB."""


def score(
    rewards: pl.DataFrame, solutions: pl.DataFrame, evaluation: Evaluation, seed: int
) -> pl.DataFrame:
    """The `eval_scores` table: pass@1, then pass@k and maj@k for every k > 1, shares, mean_tokens.

    There is no maj@1, a vote of one: its expectation is pass@1. Raises ToprError when rewards and
    solutions do not fit, without a verifiable sample, and for a k with which no prompt is left.
    """
    tokens = solutions.select(*KEY, tokens=pl.col("token_ids").list.len())
    rows = paired(tokens, rewards.select(*KEY, "answer", "outcome")).sort(KEY)
    ks = sorted({k for k in evaluation.k or (evaluation.samples_per_prompt,) if k > 1})
    values = per_prompt(rows, ks)
    _check_defined(values, rows.height)
    matrix_PM = values.drop("prompt_id").to_numpy().astype(float)
    low_M, high_M = bootstrap(matrix_PM, evaluation.bootstrap, evaluation.confidence, seed)
    table = pl.DataFrame(
        {
            "metric": values.columns[1:],
            "value": np.nanmean(matrix_PM, axis=0),
            "low": low_M,
            "high": high_M,
            "n": (~np.isnan(matrix_PM)).sum(axis=0),
        }
    )
    # The last bits of a matrix product differ between thread counts, and the table is hashed.
    return tables.EVAL_SCORES.conform(table.with_columns(pl.col("value", "low", "high").round(12)))


def per_prompt(rows: pl.DataFrame, ks: list[int]) -> pl.DataFrame:
    """One row per prompt, sorted by prompt_id, one column per metric; NaN where it is undefined.

    `rows` has prompt_id, sample_index, answer, outcome, tokens and is sorted by the first two.
    """
    usable = rows.filter(pl.col("outcome") != "unverifiable")
    is_ = {name: pl.col("outcome") == name for name in tables.OUTCOMES}
    counts = usable.group_by("prompt_id").agg(
        n=pl.len(),
        correct=is_["correct"].sum(),
        invalid=is_["invalid"].mean(),
        truncated=is_["truncated"].mean(),
        mean_tokens=pl.col("tokens").mean(),
    )
    prompts = rows.group_by("prompt_id").agg(unverifiable=is_["unverifiable"].mean())
    prompts = prompts.join(counts, on="prompt_id", how="left").sort("prompt_id")
    counts_P = prompts.select(pl.col("n", "correct").fill_null(0).cast(pl.Int64))
    n_P, correct_P = counts_P["n"].to_numpy(), counts_P["correct"].to_numpy()
    return prompts.select(
        "prompt_id",
        *(pl.Series(f"pass@{k}", pass_at_k(n_P, correct_P, k)) for k in [1, *ks]),
        *(_maj_at_k(usable, prompts, k) for k in ks),
        *(pl.col(c).fill_null(math.nan) for c in ("invalid", "truncated", "unverifiable")),
        pl.col("mean_tokens").fill_null(math.nan),
    )


def pass_at_k(n_P: np.ndarray, correct_P: np.ndarray, k: int) -> np.ndarray:
    """1 - C(n-c, k) / C(n, k) per prompt, the unbiased estimator (Chen et al. 2021, eq. 1).

    The chance that k of the n samples, drawn without replacement, hold one of the c correct ones;
    NaN where n < k.
    """
    wrong_P = (n_P - correct_P).astype(float)
    all_wrong_P = np.ones(len(n_P))
    for drawn in range(k):
        all_wrong_P *= np.maximum(wrong_P - drawn, 0) / np.maximum(n_P - drawn, 1)
    return np.where(n_P >= k, 1 - all_wrong_P, np.nan)


def majority(rows: pl.DataFrame, k: int) -> pl.DataFrame:
    """Per prompt with k rows or more: is the answer that most of its first k rows give correct?

    Answers are compared as text. Rows without an answer do not vote, and without any vote the
    prompt is wrong. A tie goes to the answer that was given first (lowest sample_index). An answer
    is correct if one of its samples was verified as correct.

    Returns prompt_id and `right` (bool). `rows` are sorted by (prompt_id, sample_index).
    """
    first = rows.with_columns(turn=pl.int_range(pl.len()).over("prompt_id")).filter(
        pl.len().over("prompt_id") >= k, pl.col("turn") < k
    )
    winners = (
        first.drop_nulls("answer")
        .group_by("prompt_id", "answer")
        .agg(
            votes=pl.len(), turn=pl.col("turn").min(), right=(pl.col("outcome") == "correct").any()
        )
        .sort("prompt_id", "votes", "turn", descending=[False, True, False])
        .unique("prompt_id", keep="first", maintain_order=True)
    )
    return (
        first.select(pl.col("prompt_id").unique())
        .join(winners.select("prompt_id", "right"), on="prompt_id", how="left")
        .with_columns(pl.col("right").fill_null(False))
    )


def bootstrap(
    values_PM: np.ndarray, resamples: int, confidence: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile interval of each column's mean over its defined (not NaN) prompts.

    Prompts are drawn with replacement, the same draws for all M columns. Memory does not grow with
    `resamples` times prompts. Returns the lower and upper ends, shape M each.
    """
    rng = np.random.default_rng(seed)
    prompts = len(values_PM)
    defined_PM = ~np.isnan(values_PM)
    sums_of = np.hstack([np.where(defined_PM, values_PM, 0), defined_PM])
    totals = np.empty((resamples, sums_of.shape[1]))
    block = max(1, _BLOCK // prompts)
    for start in range(0, resamples, block):
        some = min(block, resamples - start)
        drawn = rng.integers(0, prompts, (some, prompts), dtype=np.int32)
        drawn += (np.arange(some, dtype=np.int32) * prompts)[:, None]
        times = np.bincount(drawn.ravel(), minlength=some * prompts).reshape(some, prompts)
        totals[start : start + some] = times.astype(float) @ sums_of
    sums, counts = np.hsplit(totals, 2)
    means = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    tail = (1 - confidence) / 2
    low_M, high_M = np.nanquantile(means, [tail, 1 - tail], axis=0)
    return low_M, high_M


def _maj_at_k(usable: pl.DataFrame, prompts: pl.DataFrame, k: int) -> pl.Series:
    right = prompts.select("prompt_id").join(
        majority(usable, k), on="prompt_id", how="left", maintain_order="left"
    )["right"]
    return right.cast(pl.Float64).fill_null(math.nan).alias(f"maj@{k}")


def _check_defined(values: pl.DataFrame, samples: int) -> None:
    for name in values.columns[1:]:
        if values[name].is_nan().all():
            raise ToprError(
                f"eval_scores: {name} has no prompt to rest on: of the {samples} samples of "
                f"{values.height} prompts no prompt has enough that are verifiable; check the gold "
                "of eval_prompts, evaluation.samples_per_prompt and evaluation.k"
            )
