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
from topr_pipeline.evals.bootstrap import bootstrap
from topr_pipeline.evals.voting import best_of, check_scores, majority
from topr_pipeline.experiment import Evaluation
from topr_pipeline.mixes.pairing import KEY, paired

FEW = 0.25
"""A prompt has few correct samples when at least one and at most this share of them are."""


def score(
    rewards: pl.DataFrame, solutions: pl.DataFrame, evaluation: Evaluation, seed: int
) -> pl.DataFrame:
    """The `eval_scores` table: the means of `by_prompt` over prompts, with their intervals.

    Raises ToprError as `by_prompt` does.
    """
    ks = sorted({k for k in evaluation.k or (evaluation.samples_per_prompt,) if k > 1})
    return summarised(by_prompt(rewards, solutions, ks), evaluation, seed)


def by_prompt(rewards: pl.DataFrame, solutions: pl.DataFrame, ks: list[int]) -> pl.DataFrame:
    """One row per prompt, sorted by prompt_id, one column per metric; NaN where it is undefined.

    pass@1, then pass@k, maj@k and, where `rewards` has a column `score`, weighted_maj@k and best@k
    for each of `ks` (above 1); the shares of samples that are invalid, truncated and unverifiable;
    whether none and whether few (FEW) of the prompt's samples are correct; mean_tokens. There is no
    maj@1, a vote of one: its expectation is pass@1. docs/evaluation.md has the formulas.

    Raises ToprError when rewards and solutions do not fit, for scores that are no weights, without
    a verifiable sample, and for a k with which no prompt is left.
    """
    tokens = solutions.select(*KEY, tokens=pl.col("token_ids").list.len())
    scored = ["score"] if "score" in rewards.columns else []
    rows = paired(tokens, rewards.select(*KEY, "answer", "outcome", *scored)).sort(KEY)
    if scored:
        check_scores(rows)
    values = _by_prompt(rows, ks)
    _check_defined(values, rows.height)
    return values


def summarised(values: pl.DataFrame, evaluation: Evaluation, seed: int) -> pl.DataFrame:
    """The `eval_scores` table of the values of `by_prompt`."""
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


def _by_prompt(rows: pl.DataFrame, ks: list[int]) -> pl.DataFrame:
    usable = rows.filter(pl.col("outcome") != "unverifiable")
    is_ = {name: pl.col("outcome") == name for name in tables.OUTCOMES}
    counts = usable.group_by("prompt_id").agg(
        n=pl.len(),
        correct=is_["correct"].sum(),
        invalid=is_["invalid"].mean(),
        truncated=is_["truncated"].mean(),
        none_correct=(~is_["correct"].any()).cast(pl.Float64),
        few_correct=(is_["correct"].any() & (is_["correct"].mean() <= FEW)).cast(pl.Float64),
        mean_tokens=pl.col("tokens").mean(),
    )
    prompts = rows.group_by("prompt_id").agg(unverifiable=is_["unverifiable"].mean())
    prompts = prompts.join(counts, on="prompt_id", how="left").sort("prompt_id")
    counts_P = prompts.select(pl.col("n", "correct").fill_null(0).cast(pl.Int64))
    n_P, correct_P = counts_P["n"].to_numpy(), counts_P["correct"].to_numpy()
    return prompts.select(
        "prompt_id",
        *(pl.Series(f"pass@{k}", pass_at_k(n_P, correct_P, k)) for k in [1, *ks]),
        *_chosen(usable, prompts, ks),
        *(pl.col(c).fill_null(math.nan) for c in ("invalid", "truncated", "unverifiable")),
        *(pl.col(c).fill_null(math.nan) for c in ("none_correct", "few_correct", "mean_tokens")),
    )


def _chosen(usable: pl.DataFrame, prompts: pl.DataFrame, ks: list[int]) -> list[pl.Series]:
    """Per prompt and k: is the answer that a vote or a score chooses right?"""
    found = {f"maj@{k}": majority(usable, k) for k in ks}
    if "score" in usable.columns:
        found |= {f"weighted_maj@{k}": majority(usable, k, weight="score") for k in ks}
        found |= {f"best@{k}": best_of(usable, k) for k in ks}
    asked = prompts.select("prompt_id")
    return [
        asked.join(right, on="prompt_id", how="left", maintain_order="left")["right"]
        .cast(pl.Float64)
        .fill_null(math.nan)
        .alias(name)
        for name, right in found.items()
    ]


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


def _check_defined(values: pl.DataFrame, samples: int) -> None:
    for name in values.columns[1:]:
        if values[name].is_nan().all():
            raise ToprError(
                f"eval_scores: {name} has no prompt to rest on: of the {samples} samples of "
                f"{values.height} prompts no prompt has enough that are verifiable; check the gold "
                "of eval_prompts, evaluation.samples_per_prompt and evaluation.k"
            )
