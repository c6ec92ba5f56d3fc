"""Rewards: from solutions and prompts to a table of outcomes and rewards.

In: `solutions` and `prompts` tables and the `rewards` section of the experiment.
Out: a `rewards` table, one row per solution, and checks of the outcome shares.
May fail: ToprError for solutions without a prompt. A solution that cannot be verified fails
nothing: its outcome is `unverifiable`, its reward that of the YAML (null: never trained on).
"""

from topr_pipeline.rewards.limits import checks
from topr_pipeline.rewards.verify import verify

__all__ = ["checks", "verify"]
