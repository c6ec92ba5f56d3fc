"""Prompt sets: what the policy is asked, with the right answers.

In: a `prompts` or `eval_prompts` section of the YAML, and the project's root for its files.
Out: a table in the `PROMPTS` schema, one row per distinct prompt; its rows for one iteration.
Fails (ToprError): files that cannot be read row by row, prompts without text or gold, one prompt
with two golds, fewer problems than asked for, and prompts that are both trained and evaluated on.
"""

from topr_pipeline.prompts.load import check_overlap, for_iteration, load_prompts
from topr_pipeline.prompts.text import normalise, prompt_id
from topr_pipeline.prompts.word_problems import (
    Noise,
    Problem,
    demonstrations,
    problems,
    vocabulary,
)

__all__ = [
    "Noise",
    "Problem",
    "check_overlap",
    "demonstrations",
    "for_iteration",
    "load_prompts",
    "normalise",
    "problems",
    "prompt_id",
    "vocabulary",
]
