"""Is one checkpoint better than another? Paired differences over the prompts that both answered."""

import numpy as np
import polars as pl

from topr_pipeline import tables
from topr_pipeline.errors import ToprError
from topr_pipeline.evals.bootstrap import interval, resampled_means
from topr_pipeline.experiment import Evaluation

DIFFERENCES = tables.Table(
    "differences",
    {
        "metric": (tables.TEXT, "as in eval_scores"),
        "before": (tables.FLOAT, "mean over the prompts that both have"),
        "after": (tables.FLOAT, "mean over the same prompts"),
        "difference": (tables.FLOAT, "after - before"),
        "low": (tables.FLOAT, "lower end of the paired bootstrap interval over prompts"),
        "high": (tables.FLOAT, "upper end"),
        "above": (tables.FLOAT, "share of resamples with a difference above 0; ties count half"),
        "n": (tables.INT, "prompts that both have"),
        "verdict": (tables.TEXT, "higher or lower where the interval is beside 0, else unclear"),
    },
    ("metric",),
)


def differences(
    before: pl.DataFrame, after: pl.DataFrame, evaluation: Evaluation, seed: int
) -> pl.DataFrame:
    """Paired differences of every metric that two tables of `metrics.by_prompt` share.

    A prompt counts in a metric when both have a value. The prompts are resampled, each with both of
    its values, so that how hard a prompt is cancels out: the interval is narrower than that of two
    separate means. A metric without a common prompt is left out. Raises ToprError without any
    common prompt, as of experiments with different eval prompts.
    """
    shared = [m for m in before.columns[1:] if m in after.columns]
    both = before.join(after, on="prompt_id", suffix="|after").sort("prompt_id")
    if both.is_empty():
        raise ToprError(
            f"nothing to compare: none of {after.height} eval prompts is among the other "
            f"{before.height}; compare scores of the same eval_prompts"
        )
    before_PM = both.select(shared).to_numpy().astype(float)
    change_PM = both.select(f"{m}|after" for m in shared).to_numpy().astype(float) - before_PM
    known = ~np.isnan(change_PM).all(axis=0)
    before_PM, change_PM = before_PM[:, known], change_PM[:, known]
    before_M = np.nanmean(np.where(np.isnan(change_PM), np.nan, before_PM), axis=0)
    difference_M = np.nanmean(change_PM, axis=0)
    means_RM = resampled_means(change_PM, evaluation.bootstrap, seed)
    low_M, high_M = interval(means_RM, evaluation.confidence)
    table = pl.DataFrame(
        {
            "metric": np.array(shared)[known].tolist(),
            "before": before_M,
            "after": before_M + difference_M,
            "difference": difference_M,
            "low": low_M,
            "high": high_M,
            "above": np.nanmean(0.5 * (1 + np.sign(means_RM)), axis=0),
            "n": (~np.isnan(change_PM)).sum(axis=0),
        }
    ).with_columns(pl.col("before", "after", "difference", "low", "high").round(12))
    verdict = (
        pl.when(pl.col("low") > 0)
        .then(pl.lit("higher"))
        .when(pl.col("high") < 0)
        .then(pl.lit("lower"))
        .otherwise(pl.lit("unclear"))
    )
    return DIFFERENCES.conform(table.with_columns(verdict=verdict))
