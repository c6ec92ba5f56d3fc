"""Quantities over iterations with their intervals: of one experiment, or of several together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from topr_pipeline.evals.plots import MUTED, percent
from topr_pipeline.report.drawing import (
    SERIES,
    Drawing,
    drawing,
    dressed,
    end_labels,
    figure,
    iteration_axis,
)
from topr_pipeline.report.run import Run

TOKENS = "mean_tokens"
SHARES = ("invalid", "truncated", "none_correct", "few_correct")
WORDS: Mapping[str, str] = {
    "none_correct": "none correct",
    "few_correct": "few correct",
    TOKENS: "tokens",
}


@dataclass(frozen=True)
class Line:
    """A quantity over iterations, with its interval."""

    label: str
    colour: str
    points: Mapping[int, tuple[float, float, float]]


def of_one(run: Run) -> list[Drawing]:
    """Learning curves of an experiment: what is solved, what goes wrong, how long."""
    prefix = f"{run.name}-"
    solved = [m for m in ranked(run) if not m.startswith("best")]
    said = f"share of {run.eval_prompts.height} eval prompts; bands are intervals"
    found = [
        curves(f"{prefix}solved", lines(run, solved), "Solved", said),
        curves(f"{prefix}failures", lines(run, SHARES), "What goes wrong", FAILURES, low=0),
        curves(
            f"{prefix}length",
            lines(run, [TOKENS]),
            "Length",
            SAID[TOKENS],
            unit="tokens",
        ),
    ]
    return [each for each in found if each]


FAILURES = "of samples: invalid, truncated; of prompts: none, few correct"


def of_several(runs: Sequence[Run], changes: pl.DataFrame) -> list[Drawing]:
    """A plot per metric with a line per experiment, and pass@1 less that of the first."""
    metrics = [m for m in ranked(runs[0]) if all(m in ranked(run) for run in runs)]
    titles = {**{m: m for m in metrics}, "invalid": "Invalid", "none_correct": "None correct"}
    titles[TOKENS] = "Length"
    found = []
    for metric, title in titles.items():
        beside = [
            Line(run.name, SERIES[i % len(SERIES)], line.points)
            for i, run in enumerate(runs)
            for line in lines(run, [metric])
        ]
        said = SAID.get(metric, "share of eval prompts; bands are intervals")
        unit: Unit = "tokens" if metric == TOKENS else "share"
        found.append(curves(f"all-{metric.replace('@', '-')}", beside, title, said, unit=unit))
    paired = changes.filter(pl.col("against") != pl.col("experiment"), metric="pass@1")
    against = [
        Line(
            run.name,
            SERIES[i % len(SERIES)],
            {
                row["iteration"]: (row["difference"], row["low"], row["high"])
                for row in paired.filter(experiment=run.name).iter_rows(named=True)
            },
        )
        for i, run in enumerate(runs)
    ]
    title = f"pass@1 less that of {_short(runs[0].name)}"
    said = "same prompts; paired intervals"
    found.append(curves("all-paired", against, title, said, unit="change"))
    return [each for each in found if each]


SAID = {
    "invalid": "share of samples without an answer",
    "none_correct": "share of prompts that no sample solves",
    TOKENS: "tokens a completion",
}


def ranked(run: Run) -> list[str]:
    """pass@1, and of the largest k of every iteration pass@k, the votes and the best."""
    names = set.intersection(*(set(frame["metric"]) for frame in run.scores.values()))
    largest = max(int(name[5:]) for name in names if name.startswith("pass@"))
    kinds = ("pass", "maj", "weighted_maj", "best")
    return ["pass@1", *(f"{k}@{largest}" for k in kinds if f"{k}@{largest}" in names - {"pass@1"})]


def lines(run: Run, metrics: Sequence[str]) -> list[Line]:
    """A line for each of the metrics that there is and that is not 0 throughout."""
    long = pl.concat(
        frame.with_columns(iteration=pl.lit(k)) for k, frame in sorted(run.scores.items())
    )
    found = []
    for metric, colour in zip(metrics, SERIES, strict=False):
        rows = long.filter(metric=metric)
        points = {k: (v, lo, hi) for k, v, lo, hi in rows.select(POINT).iter_rows()}
        if any(most > 0 for *_, most in points.values()):
            found.append(Line(WORDS.get(metric, metric), colour, points))
    return found


Unit = Literal["share", "change", "tokens"]
SHOWN: Mapping[Unit, str] = {"share": ".1%", "change": "+.1%", "tokens": ".1f"}
"""How the last value is written at the end of its line."""
POINT = ("iteration", "value", "low", "high")


def curves(
    name: str,
    beside: Sequence[Line],
    title: str,
    subtitle: str,
    low: float | None = None,
    unit: Unit = "share",
) -> Drawing | None:
    """Lines with their intervals over iterations; None without any point.

    `low` is where the axis begins. Of changes, 0 is marked by a line.
    """
    beside = [line for line in beside if line.points]
    if not beside:
        return None
    drawn, axes = figure(2.9)
    ends = []
    for line in beside:
        at = sorted(line.points)
        value, least, most = (np.array([line.points[k][i] for k in at]) for i in range(3))
        axes.fill_between(at, least, most, color=line.colour, alpha=0.15, linewidth=0)
        axes.vlines(at, least, most, color=line.colour, alpha=0.5, linewidth=1)
        axes.plot(at, value, color=line.colour, linewidth=1.8, marker="o", markersize=3.5)
        shown = format(value[-1], SHOWN[unit])
        ends.append((value[-1], f"{_short(line.label)} {shown}", line.colour))
    if low is not None:
        axes.set_ylim(bottom=low)
    if unit == "change":
        axes.axhline(0, color=MUTED, linewidth=1)
    if unit != "tokens":
        axes.yaxis.set_major_formatter(percent)
    longest = max(len(label) for _, label, _ in ends)
    iteration_axis(axes, sorted({k for line in beside for k in line.points}), 0.036 * longest)
    dressed(axes, title, subtitle)
    end_labels(axes, max(k for line in beside for k in line.points), ends)
    ended = ", ".join(label for _, label, _ in ends)
    return drawing(drawn, name, f"{title} over iterations ({subtitle}). Last: {ended}.")


def _short(name: str) -> str:
    return name if len(name) <= 20 else f"{name[:19]}…"
