"""The tables of scores and of paired differences, and what they say in a sentence."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import polars as pl

from topr_pipeline import tables
from topr_pipeline.errors import ToprError
from topr_pipeline.evals import DIFFERENCES, differences
from topr_pipeline.report.run import Run

_EXPERIMENT = (tables.TEXT, "name of the experiment")

SCORES = tables.Table(
    "scores",
    {
        "experiment": _EXPERIMENT,
        "iteration": (tables.INT, "0 is the base policy"),
        **tables.EVAL_SCORES.columns,
    },
    ("experiment", "iteration", "metric"),
)
STEPS = tables.Table(
    "differences",
    {
        "experiment": _EXPERIMENT,
        "iteration": (tables.INT, "of `after`"),
        "against": (tables.TEXT, "the experiment of `before`"),
        "against_iteration": (tables.INT, "of `before`"),
        **DIFFERENCES.columns,
    },
    ("experiment", "iteration", "against", "against_iteration", "metric"),
)


def all_scores(runs: Sequence[Run]) -> pl.DataFrame:
    """The `eval_scores` of all experiments and iterations in one SCORES table.

    Raises ToprError for an experiment without any.
    """
    for run in runs:
        if not run.scores:
            raise ToprError(
                f"report: {run.name} has no eval_scores yet; run `topr run {run.name}`"
                f"{''.join(f'; {note}' for note in run.notes[:3])}"
            )
    return SCORES.conform(
        pl.concat(
            run.scores[k].with_columns(experiment=pl.lit(run.name), iteration=pl.lit(k))
            for run in runs
            for k in sorted(run.scores)
        )
    )


def all_differences(runs: Sequence[Run]) -> pl.DataFrame:
    """A STEPS table: each iteration against the one before it, and the last against the first; of
    several experiments also each against the first of them, where both have an iteration.

    Experiments that share no eval prompt are not compared.
    """
    parts = []
    for run in runs:
        parts += [_difference(run, b, run, a) for b, a in steps(run)]
    first = runs[0]
    for other in runs[1:]:
        if comparable(first, other):
            parts += [
                _difference(first, k, other, k)
                for k in sorted(set(first.values) & set(other.values))
                if _shared(first.values[k], other.values[k])
            ]
    return STEPS.conform(pl.concat(parts)) if parts else STEPS.empty()


def steps(run: Run) -> list[tuple[int, int]]:
    """Pairs of iterations that are compared: neighbours, then the first and the last.

    Two that share no eval prompt, as when one is stale, are left out.
    """
    known = sorted(run.values)
    found = list(pairwise(known))
    if len(found) > 1:
        found.append((known[0], known[-1]))
    return [(b, a) for b, a in found if _shared(run.values[b], run.values[a])]


def comparable(one: Run, other: Run) -> bool:
    """Do they share eval prompts?"""
    return _shared(one.eval_prompts, other.eval_prompts)


def _shared(one: pl.DataFrame, other: pl.DataFrame) -> bool:
    return one.join(other.select("prompt_id"), on="prompt_id", how="semi").height > 0


def _difference(before: Run, b: int, after: Run, a: int) -> pl.DataFrame:
    evaluation = after.experiment.evaluation
    found = differences(before.values[b], after.values[a], evaluation, after.seed)
    return found.with_columns(
        experiment=pl.lit(after.name),
        iteration=pl.lit(a),
        against=pl.lit(before.name),
        against_iteration=pl.lit(b),
    )


def score_table(scores: Mapping[int, pl.DataFrame]) -> pl.DataFrame:
    """One row per iteration, one column per metric, as text: "0.673 [0.640, 0.705]"."""
    long = pl.concat(scores[k].with_columns(iteration=pl.lit(k)) for k in sorted(scores))
    said = [
        interval(value, low, high, metric)
        for metric, value, low, high in long.select("metric", "value", "low", "high").iter_rows()
    ]
    return long.with_columns(said=pl.Series(said)).pivot("metric", index="iteration", values="said")


def reading(run: Run, changes: pl.DataFrame) -> list[str]:
    """What pass@1 says: from the first iteration to the last, and whether the last helped.

    `changes` is the STEPS table that has the experiment's own steps.
    """
    first, last = min(run.scores), max(run.scores)
    was, now = (metric_of(run.scores[k], "pass@1") for k in (first, last))
    if first == last:
        return [f"pass@1 is {interval(**now)} at iteration {last}."]
    before = sorted(run.scores)[-2]
    own = changes.filter(experiment=run.name, against=run.name, metric="pass@1", iteration=last)
    steps_back = own.filter(against_iteration=before).iter_rows(named=True)
    return [
        f"pass@1 went from {interval(**was)} at iteration {first} to {interval(**now)} at "
        f"iteration {last}.",
        *(
            f"{HELPED[step['verdict']]}: {change(step)} against iteration {before}, over the same "
            "prompts."
            for step in steps_back
        ),
    ]


HELPED = {
    "higher": "The last iteration helped",
    "lower": "The last iteration did harm",
    "unclear": "Whether the last iteration helped cannot be told",
}


def metric_of(scores: pl.DataFrame, metric: str) -> dict[str, Any]:
    """metric, value, low and high of one row of `eval_scores`."""
    row = scores.row(by_predicate=pl.col("metric") == metric, named=True)
    return {name: row[name] for name in ("value", "low", "high", "metric")}


def interval(value: float, low: float, high: float, metric: str) -> str:
    """`0.673 [0.640, 0.705]`; lengths with one digit."""
    digits = digits_of(metric)
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def change(row: Mapping[str, Any]) -> str:
    """`+0.072 [+0.055, +0.090]` of a row of a DIFFERENCES table."""
    said = [f"{row[name]:+.{digits_of(row['metric'])}f}" for name in ("difference", "low", "high")]
    return f"{said[0]} [{said[1]}, {said[2]}]"


def digits_of(metric: str) -> int:
    """Behind the point: shares have three, lengths one."""
    return 1 if metric == "mean_tokens" else 3


def markdown_table(frame: pl.DataFrame) -> str:
    """`frame` as a Markdown table; four significant digits, null as an empty cell."""
    rows = [[_cell(value) for value in row] for row in [frame.columns, *frame.iter_rows()]]
    rule = ["---:" if dtype.is_numeric() else "---" for dtype in frame.dtypes]
    return "".join(f"| {' | '.join(row)} |\n" for row in [rows[0], rule, *rows[1:]])


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:.4g}"
    return str(value).replace("|", "\\|").replace("\n", " ")
