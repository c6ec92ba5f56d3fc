"""The plots of one experiment, but for its learning curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from topr_pipeline.evals.plots import BLUE, GREEN, MUTED, ORANGE, PALE, RED, rate_axis
from topr_pipeline.report.curves import Line, curves
from topr_pipeline.report.drawing import (
    SMALL,
    TEAL,
    Drawing,
    drawing,
    dressed,
    figure,
    iteration_axis,
)
from topr_pipeline.report.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes


OUTCOME_COLOURS: Mapping[str, str] = {
    "correct": GREEN,
    "incorrect": RED,
    "invalid": ORANGE,
    "truncated": TEAL,
}


def composition(run: Run) -> list[Drawing]:
    """What each mix is made of, and the share of its positives before and after the baseline."""
    if not run.mixes:
        return []
    at = sorted(run.mixes)
    drawn, axes = figure(2.9)
    counts = {
        kind: np.array([_of_outcome(run.mixes[k], kind) for k in at]) for kind in OUTCOME_COLOURS
    }
    _stacked(axes, at, counts, OUTCOME_COLOURS, legend_columns=4, headroom=1.2)
    axes.yaxis.set_major_formatter(thousands)
    dressed(axes, "What was trained on", "rows of the mix by outcome")
    said = f"Rows of the mixes of iterations {at[0]} to {at[-1]} by outcome."
    bars = drawing(drawn, f"{run.name}-mixes", said)
    shares = [
        Line("p", GREEN, {k: (run.mixes[k]["positive_share"],) * 3 for k in at}),
        Line("p~", BLUE, {k: (run.mixes[k]["effective_positive_share"],) * 3 for k in at}),
    ]
    title, subtitle = "Share of positives", "p: of rows; p~: of the mass of |R - c|"
    positive = curves(f"{run.name}-positives", shares, title, subtitle)
    return [bars, *([positive] if positive else [])]


def _of_outcome(mix: Mapping[str, Any], outcome: str) -> int:
    return sum(row.get(outcome) or 0 for row in mix["composition"])


LOG_RATIO = "log \N{GREEK SMALL LETTER PI}/\N{GREEK SMALL LETTER MU}"
PANELS = (
    ("weights", "Weights", "mean tapered ratio; 1: as sampled, 0: left by the policy",
     {"positives": ("weight_positive", GREEN), "negatives": ("weight_negative", RED)}),
    ("ratios", LOG_RATIO, "mean of the whole completion, in nats",
     {"positives": ("log_ratio_positive", GREEN), "negatives": ("log_ratio_negative", RED)}),
    ("gradient", "Gradient norm", "before clipping", {"": ("grad_norm", BLUE)}),
    ("entropy", "Entropy", "of the next token, in nats", {"": ("entropy", TEAL)}),
)  # fmt: skip


def training(run: Run) -> list[Drawing]:
    """The training logs of all iterations one after the other, without the base policy's."""
    if not run.trained:
        return []
    drawings = []
    for name, title, subtitle, columns in PANELS:
        drawn, axes = figure(2.7)
        start, starts = 0, []
        for k in run.trained:
            starts.append(start)
            for column, colour in columns.values():
                step, value, mean = _smoothed(run.logs[k], column)
                axes.plot(start + step, value, color=colour, alpha=0.3, linewidth=0.8)
                axes.plot(start + step, mean, color=colour, linewidth=1.7)
            start += int(run.logs[k].select(pl.col("step").max()).item() or 0)
        _iterations_above(axes, run.trained, starts, start)
        axes.set_xlabel("optimiser step")
        axes.locator_params(axis="both", nbins=6)
        dressed(axes, title, subtitle)
        _coloured_names(axes, columns)
        alt = f"{title} ({subtitle}) over the optimiser steps of iterations {run.trained}."
        drawings.append(drawing(drawn, f"{run.name}-{name}", alt))
    return drawings


def _coloured_names(axes: Axes, columns: Mapping[str, tuple[str, str]]) -> None:
    names = [(word, colour) for word, (_, colour) in columns.items() if word]
    for i, (word, colour) in enumerate(reversed(names)):
        axes.annotate(
            word, (1, 1), (-62 * i, 22), xycoords="axes fraction", textcoords="offset points",
            color=colour, fontsize=SMALL, fontweight="bold", ha="right", annotation_clip=False,
        )  # fmt: skip


def _iterations_above(
    axes: Axes, iterations: Sequence[int], starts: Sequence[int], end: int
) -> None:
    """A line where each iteration begins, and its number where there is room for it."""
    for k, start in zip(iterations, starts, strict=True):
        if start:
            axes.axvline(start, color=PALE, linewidth=1, linestyle=(0, (2, 2)))
        if len(iterations) <= 8:
            axes.annotate(
                f"iteration {k}" if len(iterations) <= 4 else str(k), (start, 0), (4, 4),
                xycoords=("data", "axes fraction"), textcoords="offset points",
                color=MUTED, fontsize=SMALL - 1,
            )  # fmt: skip
    axes.set_xlim(0, max(end, 1))


MOST_POINTS = 300


def _smoothed(log: pl.DataFrame, column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, values and running means; of a long training, means of neighbours."""
    known = log.select("step", value=pl.col(column).cast(pl.Float64)).drop_nulls().sort("step")
    known = known.filter(pl.col("value").is_finite())
    width = 1 + known.height // MOST_POINTS
    known = known.group_by(pl.int_range(pl.len()) // width, maintain_order=True).mean()
    window = max(1, known.height // 12)
    mean = known["value"].rolling_mean(window, min_samples=1, center=True)
    return known["step"].to_numpy(), known["value"].to_numpy(), mean.to_numpy()


MOST_ROWS = 6


def solve_rates(run: Run) -> list[Drawing]:
    """Prompts by the share of their samples that are correct: eval prompts, then training's."""
    evals = {k: v["pass@1"].drop_nans().to_numpy() for k, v in run.values.items()}
    n = run.experiment.evaluation.samples_per_prompt
    counts = {k: _histogram(rates, None, n) for k, rates in evals.items()}
    sampled = {}
    for k, mix in run.mixes.items():
        rows = mix["solve_rates"]
        rates = np.array([row["solve_rate"] for row in rows])
        weight = np.array([row["all_samples"] for row in rows], float)
        sampled[k] = _histogram(rates, weight, mix["samples_per_prompt"])
    said = "prompts by the share of their samples that are correct"
    found = [
        _histograms(f"{run.name}-eval-rates", counts, "Solve rates of eval prompts", said),
        _histograms(f"{run.name}-sampled-rates", sampled, "Solve rates of training prompts", said),
    ]
    return [each for each in found if each]


def _histogram(rates: np.ndarray, weight: np.ndarray | None, samples: int) -> np.ndarray:
    bins = max(1, min(samples, 16))
    return np.bincount(np.rint(rates * bins).astype(int), weight, bins + 1)


def _histograms(
    name: str, counts: Mapping[int, np.ndarray], title: str, subtitle: str
) -> Drawing | None:
    """One row of bars an iteration, at most MOST_ROWS, the first and the last among them."""
    at = sorted(counts)
    if not at:
        return None
    at = [at[i] for i in np.unique(np.linspace(0, len(at) - 1, MOST_ROWS).round().astype(int))]
    drawn, axes = figure(1.3 + 0.55 * len(at))
    shares = {k: counts[k] / max(counts[k].sum(), 1) for k in at}
    room = 1.3 * max(share_B.max() for share_B in shares.values())
    for row, share_B in enumerate(reversed(shares.values())):
        bins = len(share_B) - 1
        colours = [RED, *[BLUE] * (bins - 1), GREEN]
        rate_B, floor = np.arange(bins + 1) / bins, row * room
        axes.bar(rate_B, share_B, 0.82 / bins, bottom=floor, color=colours)
        axes.axhline(floor, color=PALE, linewidth=0.8)
        for at_end, colour in ((0, RED), (-1, GREEN)):
            axes.annotate(
                f"{share_B[at_end]:.0%}", (rate_B[at_end], floor + share_B[at_end]), (0, 1),
                textcoords="offset points", color=colour, fontsize=SMALL - 0.5, ha="center",
            )  # fmt: skip
    axes.set_ylim(0, room * len(at))
    axes.set_yticks(np.arange(len(at)) * room, [str(k) for k in reversed(at)])
    rate_axis(axes)
    axes.set_xlabel("correct samples of a prompt; a row an iteration; red none, green all")
    dressed(axes, title, subtitle)
    axes.grid(False)
    said = ", ".join(f"{k}: {share_B[0]:.0%}" for k, share_B in shares.items())
    return drawing(drawn, name, f"{title}: {subtitle}. Without a correct one, {said}.")


STAGE_COLOURS: Mapping[str, str] = {
    "solutions": BLUE,
    "rewards": ORANGE,
    "mix": TEAL,
    "checkpoint": GREEN,
    "eval_scores": PALE,
}


def costs(run: Run) -> list[Drawing]:
    """Seconds of each iteration by stage."""
    if run.costs.is_empty():
        return []
    at = sorted(run.costs["iteration"].unique())
    drawn, axes = figure(2.9)
    seconds = {}
    for stage in STAGE_COLOURS:
        of = dict(run.costs.filter(stage=stage).select("iteration", "seconds").iter_rows())
        seconds[stage] = np.array([of.get(k, 0.0) for k in at])
    in_all = _stacked(axes, at, seconds, STAGE_COLOURS, legend_columns=3, headroom=1.35)
    axes.yaxis.set_major_formatter(_seconds_formatter(in_all.max()))
    dressed(axes, "Time", "of the steps that made the artifacts; kept samples cost none")
    total = ", ".join(f"{k}: {s:.1f} s" for k, s in zip(at, in_all, strict=True))
    return [drawing(drawn, f"{run.name}-time", f"Seconds an iteration by stage. {total}.")]


def flips(run: Run, counts: pl.DataFrame) -> list[Drawing]:
    """How many prompts each iteration gained and lost."""
    if counts.is_empty():
        return []
    at, gained, lost = (counts[c].to_numpy() for c in ("iteration", "gained", "lost"))
    drawn, axes = figure(2.7)
    axes.bar(at, gained, BAR, color=GREEN)
    axes.bar(at, -lost, BAR, color=RED)
    axes.axhline(0, color=MUTED, linewidth=1)
    for k, up, down in zip(at, gained, lost, strict=True):
        for y, words, colour in ((up, f"+{up}", GREEN), (-down, f"\N{MINUS SIGN}{down}", RED)):
            axes.annotate(
                words, (k, y), (0, 3 if y == up else -3), textcoords="offset points",
                color=colour, fontsize=SMALL, ha="center", va="bottom" if y == up else "top",
            )  # fmt: skip
    reach = max(gained.max(), lost.max(), 1)
    axes.set_ylim(-1.3 * max(lost.max(), 0.25 * reach), 1.25 * reach)
    axes.set_yticks([])
    _room_for_bars(axes, list(at))
    dressed(axes, "Prompts gained and lost", "by the majority of their samples")
    words = ", ".join(f"{k}: +{u} -{d}" for k, u, d in zip(at, gained, lost, strict=True))
    return [drawing(drawn, f"{run.name}-flips", f"Prompts gained and lost. {words}.")]


def _stacked(
    axes: Axes,
    at: Sequence[int],
    parts: Mapping[str, np.ndarray],
    colours: Mapping[str, str],
    legend_columns: int,
    headroom: float,
) -> np.ndarray:
    """Bars of `parts` on each other, one bar an iteration; how high each is in all.

    Parts that are 0 throughout have no place in the legend, for which `headroom` leaves room.
    """
    below = np.zeros(len(at))
    for part, height in parts.items():
        if height.any():
            axes.bar(at, height, BAR, bottom=below, color=colours[part], label=part)
        below += height
    axes.legend(frameon=False, labelcolor=MUTED, fontsize=SMALL, ncols=legend_columns,
                loc="upper left", handlelength=0.9, columnspacing=1, handletextpad=0.4,
                borderaxespad=0)  # fmt: skip
    axes.set_ylim(0, headroom * (below.max() or 1))
    _room_for_bars(axes, at)
    return below


BAR = 0.62
"""Width, where iterations are 1 apart."""


def _room_for_bars(axes: Axes, at: Sequence[int]) -> None:
    iteration_axis(axes, at)
    axes.set_xlim(at[0] - 0.6, at[-1] + 0.6)


def thousands(count: float, _position: float) -> str:
    """`4,096`, `12k`, `1.5M`: seven characters at most."""
    for least, unit, name in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if count >= least:
            return f"{count / unit:g}{name}"
    return f"{count:,.0f}"


def _seconds_formatter(most: float) -> Callable[[float, float], str]:
    """Seconds, minutes or hours, by the largest."""
    unit, name = (1, "s") if most < 300 else (60, "min") if most < 3 * 3600 else (3600, "h")
    return lambda seconds, _position: f"{seconds / unit:.3g} {name}"
