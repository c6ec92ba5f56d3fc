"""Evals: from rewarded solutions of eval prompts to scores, and from scores to a report.

In: `rewards` and `solutions` tables of the eval prompts and the `evaluation` section.
Out: an `eval_scores` table with bootstrap intervals, paired differences between two evals, scores
by subject or level; plots of an artifact as PNG bytes.
May fail: ToprError for rewards that do not fit the solutions, for an eval without a verifiable
sample, for a k that no prompt has samples enough for, and for evals that share no prompt.
"""

from topr_pipeline.evals.breakdown import BREAKDOWN, breakdown
from topr_pipeline.evals.comparison import DIFFERENCES, differences
from topr_pipeline.evals.metrics import by_prompt, score
from topr_pipeline.evals.mix_plots import mix_solve_rates, mix_waterfall
from topr_pipeline.evals.plots import learning_curve, reward_histogram, training_curve

__all__ = [
    "BREAKDOWN",
    "DIFFERENCES",
    "breakdown",
    "by_prompt",
    "differences",
    "learning_curve",
    "mix_solve_rates",
    "mix_waterfall",
    "reward_histogram",
    "score",
    "training_curve",
]
