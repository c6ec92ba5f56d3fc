"""Prompt sets: what the policy is asked, with the right answers.

In: a `prompts` or `eval_prompts` section of the YAML, the `template`, and the project's root for
files. Out: a table in the `PROMPTS` schema, one row per distinct prompt; its rows for an iteration.
Fails (ToprError): files or data sets that cannot be read row by row, prompts without text or gold,
one prompt with two golds, fewer problems than asked for, prompts that are both trained and
evaluated on, prompts that leave no room in the context. No model is loaded.
"""

from topr_pipeline.prompts.context import check_context
from topr_pipeline.prompts.files import found_files
from topr_pipeline.prompts.load import apart, for_iteration, load_prompts, records
from topr_pipeline.prompts.template import check_examples, load_examples, rendered
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
    "apart",
    "check_context",
    "check_examples",
    "demonstrations",
    "for_iteration",
    "found_files",
    "load_examples",
    "load_prompts",
    "normalise",
    "problems",
    "prompt_id",
    "records",
    "rendered",
    "vocabulary",
]
