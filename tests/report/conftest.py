"""Experiments as a report sees them, without any artifact on disk."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import polars as pl
import pytest

from topr_pipeline import tables
from topr_pipeline.evals import by_prompt
from topr_pipeline.evals.metrics import summarised
from topr_pipeline.experiment import Experiment
from topr_pipeline.report import COSTS, Run

HOSTILE = "<script>alert('x')</script> & \"quoted\""
SOLVED: Mapping[int, Mapping[str, str]] = {
    0: {"p": "55", "q": "75", "r": "77", "s": "55"},
    1: {"p": "77", "q": "77", "r": "55", "s": "5-"},
    2: {"p": "77", "q": "77", "r": "77", "s": "5-"},
}
"""By iteration, each prompt's two answers; the right one is 7, `-` is none."""


def evaluated(answers: Mapping[str, str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Answers with verdict and text, and the values by prompt."""
    rows = [
        {
            "prompt_id": prompt,
            "sample_index": i,
            "answer": None if said == "-" else said,
            "outcome": {"7": "correct", "-": "invalid"}.get(said, "incorrect"),
            "text": f"{HOSTILE} The answer is {said}",
            "token_ids": [1] * (3 + i),
        }
        for prompt, both in answers.items()
        for i, said in enumerate(both)
    ]
    table = pl.DataFrame(rows, schema_overrides={"sample_index": pl.Int32, "answer": pl.String})
    return table, by_prompt(table, table, [2])


def training_log(steps: int = 3) -> pl.DataFrame:
    row = dict.fromkeys(tables.TRAINING_LOG.columns, 0.5)
    rows = [{**row, "step": i + 1, "tokens": 100} for i in range(steps)]
    return tables.TRAINING_LOG.conform(pl.DataFrame(rows))


def mix() -> dict:
    return {
        "rows": 8,
        "positive_share": 0.25,
        "effective_positive_share": 0.5,
        "baseline": 0.1,
        "composition": [
            {"iteration": 1, "rows": 3, "correct": 1, "incorrect": 2},
            {"iteration": 2, "rows": 5, "correct": 1, "incorrect": 3, "invalid": 1},
        ],
        "solve_rates": [
            {"solve_rate": 0.0, "all_samples": 3, "mix": 1},
            {"solve_rate": 0.5, "all_samples": 2, "mix": 2},
            {"solve_rate": 1.0, "all_samples": 2, "mix": 0},
        ],
        "samples_per_prompt": 2,
    }


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Run]:
    """`make_run(name, SOLVED, **sections)`: an experiment with these answers."""

    def make(name: str = "toy", solved: Mapping = SOLVED, **sections) -> Run:
        problems = {"source": "word_problems", "count": 4}
        said = {
            "iterations": 2,
            "description": HOSTILE,
            "policy": {"source": "tiny"},
            "prompts": problems,
            "eval_prompts": problems,
            "evaluation": {"samples_per_prompt": 2, "bootstrap": 50},
        }
        experiment = Experiment.model_validate({**said, **sections})
        evals = {k: evaluated(answers) for k, answers in solved.items()}
        asked = [
            dict.fromkeys(tables.PROMPTS.columns, "")
            | {"prompt_id": p, "prompt": f"{HOSTILE} {p}?", "gold": "7", "meta": "{}"}
            for p in "pqrs"
        ]
        seconds = {"solutions": 4.0, "checkpoint": 2.0, "eval_scores": 1.0}
        costs = [
            {"iteration": k, "stage": stage, "seconds": s, "tokens": 100 if k else None}
            for k in solved
            for stage, s in seconds.items()
        ]
        run = Run(
            name,
            experiment,
            tables.PROMPTS.conform(pl.DataFrame(asked)),
            {},
            {k: values for k, (_, values) in evals.items()},
            {k: table.lazy() for k, (table, _) in evals.items()},
            {k: mix() for k in solved if k},
            {k: training_log() for k in solved},
            COSTS.conform(pl.DataFrame(costs, schema=COSTS.schema)),
        )
        scores = {
            k: summarised(values, experiment.evaluation, run.seed)
            for k, values in run.values.items()
        }
        return replace(run, scores=scores)

    return make
