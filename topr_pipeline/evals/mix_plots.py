"""Plots of a mix: what each curation step left, and how hard its prompts are."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from topr_pipeline.evals.plots import (
    BLUE,
    GREEN,
    MUTED,
    PALE,
    RED,
    _figure,
    _png,
    _title,
    rate_axis,
)


def mix_waterfall(steps: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows after each of `steps` (step, rows, positives), those of reward above 0 apart."""
    figure = _figure(1.4 + 0.42 * len(steps))
    axes = figure.subplots()
    rows_S, positives_S = (np.array([s[k] for s in steps]) for k in ("rows", "positives"))
    place_S = np.arange(len(steps))
    axes.barh(place_S, positives_S, height=0.62, color=GREEN)
    axes.barh(place_S, rows_S - positives_S, left=positives_S, height=0.62, color=RED)
    for place, rows, positives in zip(place_S, rows_S, positives_S, strict=True):
        said = f"{rows:,}  ({positives / max(rows, 1):.0%} positive)"
        axes.annotate(
            said, (rows, place), (6, 0), textcoords="offset points", color=MUTED, va="center"
        )
    axes.set_yticks(place_S, [_short(s["step"]) for s in steps])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.35 * max(rows_S.max(), 1))
    _title(axes, "What each step left", "green: rows with a reward above 0; red: the others")
    axes.grid(False)
    axes.set_xticks([])
    return _png(figure)


def mix_solve_rates(rates: Sequence[Mapping[str, float]], samples: int) -> bytes:
    """Prompts by solve rate (solve_rate, all_samples, mix), before and after curation.

    `samples` is how many a prompt has at most: that many steps of the rate are told apart, or 20.
    """
    bins = max(1, min(samples, 20))
    at_R = np.rint([r["solve_rate"] * bins for r in rates]).astype(int)
    before_B, after_B = (
        np.bincount(at_R, [r[of] for r in rates], bins + 1) for of in ("all_samples", "mix")
    )
    figure = _figure(3.8)
    axes = figure.subplots()
    rate_B, width = np.arange(bins + 1) / bins, 0.42 / bins
    axes.bar(rate_B - width / 2, before_B, width, color=PALE, label="all samples")
    axes.bar(rate_B + width / 2, after_B, width, color=BLUE, label="in the mix")
    axes.legend(frameon=False, labelcolor=MUTED, loc="upper center", ncols=2)
    axes.set_ylim(0, 1.22 * max(before_B.max(), after_B.max(), 1))
    axes.set_xlabel("share of a prompt's rows that are correct", color=MUTED)
    rate_axis(axes)
    said = f"number of prompts: {before_B.sum():.0f} sampled, {after_B.sum():.0f} in the mix"
    _title(axes, "Solve rate before and after curation", said)
    return _png(figure)


def _short(label: str) -> str:
    return label if len(label) <= 34 else f"{label[:31]}..."
