"""Mixes: from rewarded solutions to what is trained on.

In: `solutions` and `rewards` tables of an iteration, those of earlier ones where it replays, and
the `mix` section of the experiment.
Out: a `mix` table with advantages R - c, shares of positives, row counts of each step, checks.
May fail: ToprError for rewards that do not fit the solutions, for a step that cannot do what it
says, for a mix without rows or without any advantage, and for an effective positive share that no
baseline gives.
"""

from topr_pipeline.mixes.baseline import (
    baseline_for,
    baseline_for_rewards,
    effective_share,
    effective_share_of_rewards,
)
from topr_pipeline.mixes.curate import Curated, Source, checks, curate
from topr_pipeline.mixes.look import examples
from topr_pipeline.mixes.pairing import paired

__all__ = [
    "Curated",
    "Source",
    "baseline_for",
    "baseline_for_rewards",
    "checks",
    "curate",
    "effective_share",
    "effective_share_of_rewards",
    "examples",
    "paired",
]
