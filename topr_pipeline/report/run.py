"""What a report knows of one experiment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from topr_pipeline import tables
from topr_pipeline.experiment import Experiment

COSTS = tables.Table(
    "costs",
    {
        "iteration": (tables.INT, "0 is the base policy"),
        "stage": (tables.TEXT, "solutions, rewards, mix, checkpoint or eval_scores"),
        "seconds": (tables.FLOAT, "of the step that made the artifact"),
        "tokens": (tables.INT, "sampled, or trained on; null where none are"),
    },
    ("iteration", "stage"),
)
STAGES = ("solutions", "rewards", "mix", "checkpoint", "eval_scores")
"""Of an iteration, in order."""


@dataclass(frozen=True)
class Run:
    """An experiment's finished tables by iteration; an iteration may lack some.

    `scores` are `eval_scores` and `values` what `evals.by_prompt` made them from; `answers` have
    prompt_id, sample_index, answer, outcome and text of the eval's samples. `mixes` are the figures
    of `mixes.Curated`, `logs` training logs, `costs` a COSTS table. `notes` say what is missing or
    stale.
    """

    name: str
    experiment: Experiment
    eval_prompts: pl.DataFrame
    scores: Mapping[int, pl.DataFrame]
    values: Mapping[int, pl.DataFrame]
    answers: Mapping[int, pl.LazyFrame]
    mixes: Mapping[int, Mapping[str, Any]]
    logs: Mapping[int, pl.DataFrame]
    costs: pl.DataFrame
    notes: Sequence[str] = ()

    @property
    def seed(self) -> int:
        """Of the bootstrap, as for its scores."""
        return self.experiment.seed_for("bootstrap")

    @property
    def trained(self) -> list[int]:
        """Iterations with a training log, without the base policy's."""
        return [k for k in sorted(self.logs) if k > 0]
