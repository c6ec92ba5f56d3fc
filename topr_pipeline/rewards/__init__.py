"""Rewards: from solutions and prompts to a table of outcomes and rewards.

In: `solutions` and `prompts` tables and the `rewards` section of the experiment.
Out: a `rewards` table, one row per solution, checks of the outcome shares, and a summary.
May fail: ToprError for solutions without a prompt and for a verifier that cannot be imported. A
solution that cannot be verified fails nothing: its outcome is `unverifiable`, its reward null.
"""

from topr_pipeline.rewards.files import FileSummary, verify_file
from topr_pipeline.rewards.grading import VerifyReport, grade
from topr_pipeline.rewards.limits import checks
from topr_pipeline.rewards.offline import given_rewards
from topr_pipeline.rewards.report import Summary, examples, summarise
from topr_pipeline.rewards.verifiers import Verifier, batch
from topr_pipeline.rewards.verify import verify, verify_reported

__all__ = [
    "FileSummary",
    "Summary",
    "Verifier",
    "VerifyReport",
    "batch",
    "checks",
    "examples",
    "given_rewards",
    "grade",
    "summarise",
    "verify",
    "verify_file",
    "verify_reported",
]
