"""The blocking checks of a rewards table."""

import polars as pl

from topr_pipeline.checks import Check
from topr_pipeline.experiment import Rewards


def checks(table: pl.DataFrame, rewards: Rewards) -> list[Check]:
    """One check per limit of `rewards.limits`: is the outcome's share within it?"""
    return [_share(table, outcome, limit) for outcome, limit in rewards.limits]


def _share(table: pl.DataFrame, outcome: str, limit: float) -> Check:
    count = table.filter(pl.col("outcome") == outcome).height
    share = count / table.height if table.height else 0.0
    said = f"{count} of {table.height} solutions are {outcome} ({share:.1%})"
    if share > limit:
        said += f", more than rewards.limits.{outcome}: {limit:.1%}"
    return Check(
        f"{outcome}_share", share <= limit, said, {"share": share, "limit": limit, "count": count}
    )
