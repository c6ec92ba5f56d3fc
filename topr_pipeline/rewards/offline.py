"""Rewards that came with an off-policy set."""

import polars as pl

from topr_pipeline.errors import ToprError
from topr_pipeline.tables import REWARDS

_KEY = ["prompt_id", "sample_index"]


def given_rewards(rows: pl.DataFrame, solutions: pl.DataFrame, said: str) -> pl.DataFrame:
    """The `rewards` table of `solutions` (the key and finish_reason), in their order.

    `rows` (the key, reward, outcome, answer) are those of the set; `said` goes into `verifier`.
    Without an outcome, null is unverifiable, a reward above 0 correct, any other incorrect, or
    truncated where the completion was cut off. Raises ToprError for a solution that is not in the
    set.
    """
    of_set = rows.select(*_KEY, "reward", "outcome", "answer", known=True)
    joined = solutions.join(of_set, on=_KEY, how="left", maintain_order="left", validate="1:1")
    if joined["known"].null_count():
        lost = joined.filter(pl.col("known").is_null()).select(_KEY).row(0)
        raise ToprError(
            f"rewards: the set has no row for the solution {lost} any more ({said}); was its file "
            "edited meanwhile? Run once more"
        )
    reward = pl.col("reward")
    told = (
        pl.when(reward.is_null())
        .then(pl.lit("unverifiable"))
        .when(reward > 0)
        .then(pl.lit("correct"))
        .when(pl.col("finish_reason") == "length")
        .then(pl.lit("truncated"))
        .otherwise(pl.lit("incorrect"))
    )
    missing = pl.when(reward.is_null()).then(pl.lit("the set has no reward"))
    return REWARDS.conform(
        joined.with_columns(
            outcome=pl.coalesce("outcome", told), verifier=pl.lit(said), detail=missing
        )
    )
