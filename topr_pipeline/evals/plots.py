"""Plots as PNG bytes: equal inputs give equal bytes, and no global state of matplotlib is used."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED = "#2364aa", "#b85c0f", "#2a8c6b", "#b8404a"
INK, MUTED, GRID, PALE = "#22272e", "#6b7480", "#e6e9ed", "#b9c4d0"
_LINE = 20
"""Pixels between two labels, at the 100 dpi that a figure is laid out with."""


def learning_curve(scores: Mapping[int, pl.DataFrame], title: str) -> bytes:
    """pass@1, and pass@k and maj@k of the largest k, over iterations, with their intervals.

    `scores` holds an `eval_scores` table per iteration. The invalid share has a small panel below.
    """
    figure = _figure(5.4)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3.4, 1])
    metrics = _shown_metrics(scores)
    colors = (BLUE, ORANGE, GREEN)
    ends = [
        (_band(upper, scores, metric, color), metric, color)
        for metric, color in zip(metrics, colors, strict=False)
    ]
    upper.set_ylim(*_share_limits(scores, metrics))
    _direct_labels(upper, max(scores), ends)
    last = _band(lower, scores, "invalid", RED)
    lower.set_ylim(0, max(0.05, 1.25 * max(_column(scores, "invalid", "high"))))
    _direct_labels(lower, max(scores), [(last, "invalid", RED)])
    lower.set_xlabel("iteration (0 is the base policy)", color=MUTED)
    lower.set_xticks(_ticks(sorted(scores)))
    first, final = min(scores), max(scores)
    room = max(final - first, 1)
    lower.set_xlim(first - 0.06 * room, final + 0.26 * room)
    for axes in (upper, lower):
        axes.yaxis.set_major_formatter(percent)
    prompts = min(_column(scores, "pass@1", "n"))
    _title(upper, title, f"share of {prompts} eval prompts; bands are bootstrap intervals")
    return _png(figure)


def reward_histogram(rewards: pl.DataFrame) -> bytes:
    """How many prompts have which solve rate (correct among their verifiable samples)."""
    per_prompt = (
        rewards.filter(pl.col("outcome") != "unverifiable")
        .group_by("prompt_id")
        .agg(rate=(pl.col("outcome") == "correct").mean(), n=pl.len())
    )
    if per_prompt.is_empty():
        figure = _figure(3.6)
        said = f"all {rewards.height} samples are unverifiable"
        _title(figure.subplots(), "Solve rate of prompts", said)
        return _png(figure)
    rate_P = per_prompt["rate"].to_numpy()
    bins = min(int(per_prompt.select(pl.col("n").max()).item()), 20)
    counts = np.bincount(np.rint(rate_P * bins).astype(int), minlength=bins + 1)
    figure = _figure(3.6)
    axes = figure.subplots()
    colors = [RED, *[BLUE] * (bins - 1), GREEN]
    axes.bar(np.arange(bins + 1) / bins, counts, width=0.82 / bins, color=colors)
    for rate, count, color in ((0, counts[0], RED), (1, counts[-1], GREEN)):
        said = f"{count / len(rate_P):.0%}\n{'never' if rate == 0 else 'always'}"
        axes.annotate(
            said, (rate, count), (0, 3), textcoords="offset points", color=color, ha="center"
        )
    axes.set_xlabel("share of a prompt's samples that are correct", color=MUTED)
    rate_axis(axes)
    axes.set_ylim(0, 1.18 * counts.max())
    said = f"number of prompts, {len(rate_P)} in all; mean solve rate {rate_P.mean():.1%}"
    _title(axes, "Solve rate of prompts", said)
    return _png(figure)


PANELS = (
    ("loss", BLUE, "Surrogate loss", "thin: each step; thick: running mean"),
    ("grad_norm", BLUE, "Gradient norm", "before clipping"),
    ("weight_negative", ORANGE, "Weight of negatives", "0: the policy left them; 1: as sampled"),
    ("entropy", GREEN, "Entropy", "of the next token, in nats"),
    ("log_ratio_positive", GREEN, "log pi/mu of positives", "rises as they become likelier"),
    ("log_ratio_negative", RED, "log pi/mu of negatives", "falls as the policy leaves them"),
)
"""Columns of `training_log` that are drawn, two a row."""


def training_curve(log: pl.DataFrame) -> bytes:
    """What a training did, per optimiser step of a `training_log`: a panel for each of PANELS."""
    figure = _figure(8.4)
    grid = figure.subplots(len(PANELS) // 2, 2, sharex=True)
    for axes, (column, color, title, subtitle) in zip(grid.flat, PANELS, strict=True):
        _smoothed(axes, log, column, color)
        _title(axes, title, subtitle)
    grid[1][0].set_ylim(bottom=0)
    for axes in grid[-1]:
        axes.set_xlabel("optimiser step", color=MUTED)
        axes.spines["bottom"].set_visible(True)
    return _png(figure)


def _shown_metrics(scores: Mapping[int, pl.DataFrame]) -> list[str]:
    """pass@1, then pass@k and maj@k of the largest k that all iterations have."""
    names = set.intersection(*(set(frame["metric"]) for frame in scores.values()))
    largest = max(int(name[5:]) for name in names if name.startswith("pass@"))
    wanted = [f"pass@{largest}", f"maj@{largest}"]
    return ["pass@1", *(name for name in wanted if name in names and name != "pass@1")]


def _column(scores: Mapping[int, pl.DataFrame], metric: str, column: str) -> list:
    """One figure of a metric per iteration, in the order of the iterations."""
    return [
        scores[k].row(by_predicate=pl.col("metric") == metric, named=True)[column]
        for k in sorted(scores)
    ]


def _band(axes: Axes, scores: Mapping[int, pl.DataFrame], metric: str, color: str) -> float:
    """Line, points and interval of one metric; returns its last value."""
    iterations = sorted(scores)
    value, low, high = (_column(scores, metric, c) for c in ("value", "low", "high"))
    axes.fill_between(iterations, low, high, color=color, alpha=0.14, linewidth=0)
    axes.vlines(iterations, low, high, color=color, alpha=0.45, linewidth=1.2)
    axes.plot(
        iterations, value, color=color, linewidth=2.2, marker="o", markersize=5, clip_on=False
    )
    return value[-1]


def _share_limits(
    scores: Mapping[int, pl.DataFrame], metrics: Sequence[str]
) -> tuple[float, float]:
    low = min(min(_column(scores, m, "low")) for m in metrics)
    high = max(max(_column(scores, m, "high")) for m in metrics)
    margin = max(0.08 * (high - low), 0.01)
    return max(0.0, low - margin), min(1.0, high + margin) + 0.002


def _direct_labels(axes: Axes, x: float, ends: Sequence[tuple[float, str, str]]) -> None:
    """Name and last value beside the end of each line (value, metric, color)."""
    bottom, top = axes.get_ylim()
    ends = sorted(ends, reverse=True)
    heights = pushed_apart(
        [value for value, _, _ in ends], _LINE / axes.bbox.height * (top - bottom), bottom
    )
    for (value, metric, color), y in zip(ends, heights, strict=True):
        axes.annotate(
            f"{metric}  {value:.1%}", (x, y), (10, 0), textcoords="offset points",
            color=color, va="center", fontweight="bold", annotation_clip=False,
        )  # fmt: skip


def pushed_apart(falling: Sequence[float], least: float, bottom: float) -> list[float]:
    """`falling` values, each at least `least` below the one before, half of it above `bottom`.

    Those for which that leaves no room below are pushed up.
    """
    heights: list[float] = []
    for value in falling:
        heights.append(min(value, heights[-1] - least) if heights else value)
    floor = bottom + least / 2
    for i in reversed(range(len(heights))):
        heights[i] = max(heights[i], floor)
        floor = heights[i] + least
    return heights


def _ticks(iterations: Sequence[int]) -> Sequence[int]:
    """At most about a dozen of the iterations."""
    return iterations[:: 1 + (len(iterations) - 1) // 12]


def _smoothed(axes: Axes, log: pl.DataFrame, column: str, color: str) -> None:
    known = log.select("step", pl.col(column).cast(pl.Float64)).drop_nulls().sort("step")
    window = max(1, known.height // 20)
    mean = known[column].rolling_mean(window, min_samples=1, center=True)
    axes.plot(known["step"], known[column], color=color, alpha=0.35, linewidth=1)
    axes.plot(known["step"], mean, color=color, linewidth=2.2, marker="o" if window == 1 else "")
    axes.locator_params(axis="x", integer=True)
    if known.is_empty():
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no values", transform=axes.transAxes, color=MUTED, ha="center")


def _title(axes: Axes, title: str, subtitle: str) -> None:
    axes.set_title(title, loc="left", color=INK, fontsize=13, fontweight="bold", pad=24)
    axes.annotate(
        subtitle, (0, 1), (0, 8), xycoords="axes fraction", textcoords="offset points", color=MUTED
    )
    figure = axes.get_figure()
    assert figure is not None
    for each in figure.axes:
        each.spines[["top", "right", "left"]].set_visible(False)
        each.spines["bottom"].set_visible(each is figure.axes[-1])
        each.spines["bottom"].set_color(PALE)
        each.grid(axis="y", color=GRID)
        each.set_axisbelow(True)
        each.tick_params(length=0, labelcolor=MUTED)


def rate_axis(axes: Axes) -> None:
    """Ticks from 0 to 100 % alone, however far wide bars of few samples reach beside them."""
    axes.set_xticks(np.linspace(0, 1, 6))
    axes.xaxis.set_major_formatter(percent)


def percent(share: float, _position: float) -> str:
    """`67%`."""
    return f"{100 * share:.3g}%"


def _figure(height: float) -> Figure:
    """8 inches wide; matplotlib is only loaded when something is drawn."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, height), dpi=100, facecolor="white")
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
    return figure


def _png(figure: Figure) -> bytes:
    """Without date and version, so that the same plot has the same bytes."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=120, metadata={"Software": None})
    return stream.getvalue()
