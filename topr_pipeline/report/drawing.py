"""Small figures that are read in light and dark, on a desk and on a phone: as SVG and as PNG."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topr_pipeline.evals.plots import (
    BLUE,
    GREEN,
    GRID,
    INK,
    MUTED,
    ORANGE,
    PALE,
    RED,
    pushed_apart,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VIOLET, TEAL = "#7b4fa6", "#137a8b"
SERIES = (BLUE, ORANGE, GREEN, VIOLET, RED, TEAL)
"""Colours of lines that stand side by side; a seventh has that of the first again."""
VARIABLES: Mapping[str, str] = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    PALE: "--pale",
    BLUE: "--blue",
    ORANGE: "--orange",
    GREEN: "--green",
    RED: "--red",
    VIOLET: "--violet",
    TEAL: "--teal",
    "#ffffff": "--card",
}
"""The CSS variable of each colour: page.css has their values in light and in dark."""
WIDTH, DPI = 4.6, 100
"""Inches; at 390 pixels a figure is drawn at about 0.8 of its size, and still read."""
SMALL, TEXT, LARGE = 8, 8.5, 10.5
"""Font sizes in points."""
_LINE = 15
"""Pixels between two labels."""


@dataclass(frozen=True)
class Drawing:
    """A plot: `name` is that of its file, `alt` what it shows, in a sentence."""

    name: str
    alt: str
    svg: str
    png: bytes


def figure(height: float) -> tuple[Figure, Axes]:
    """A figure WIDTH wide and `height` high, in inches, with one plot in it.

    The margins are the same for all, for tick labels of up to seven characters: plots below each
    other are in line, and no layout has to be worked out. Matplotlib is only loaded here.
    """
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white")
    drawn.subplots_adjust(0.58 / WIDTH, 0.5 / height, 1 - 0.12 / WIDTH, 1 - 0.66 / height)
    return drawn, drawn.subplots()


def drawing(drawn: Figure, name: str, alt: str) -> Drawing:
    """`drawn` in both forms; equal figures give equal bytes.

    The canvases are called themselves, for `savefig` draws everything twice.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    stream, picture = io.StringIO(), io.BytesIO()
    drawn.dpi = 1.6 * DPI
    FigureCanvasAgg(drawn).print_png(picture, metadata={"Software": None})
    drawn.set_facecolor("none")
    drawn.axes[0].set_facecolor("none")
    FigureCanvasSVG(drawn).print_svg(stream, metadata={"Date": None})
    return Drawing(name, alt, _inline(stream.getvalue(), name), picture.getvalue())


def _inline(svg: str, name: str) -> str:
    """For a place inside a page: no header, ids of its own, colours of the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    # Matplotlib's ids hold a random part, and are the same in every figure for the letters.
    prefix = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    ids = {old: f"{prefix}-{n}" for n, old in enumerate(re.findall(r'\bid="([^"]+)"', svg))}
    svg = re.sub(r'\bid="([^"]+)"', lambda m: f'id="{ids[m[1]]}"', svg)
    svg = re.sub(r'href="#([^"]+)"', lambda m: f'href="#{ids[m[1]]}"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", lambda m: f"url(#{ids[m[1]]})", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg.strip()


def dressed(axes: Axes, title: str, subtitle: str = "") -> None:
    """Title, subtitle, quiet axes."""
    axes.set_title(title, loc="left", color=INK, fontsize=LARGE, fontweight="bold", pad=21)
    axes.annotate(
        subtitle, (0, 1), (0, 7), xycoords="axes fraction", textcoords="offset points",
        color=MUTED, fontsize=SMALL, annotation_clip=False,
    )  # fmt: skip
    quiet(axes)


def quiet(axes: Axes) -> None:
    """No frame but the line below, a pale grid, no ticks."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(PALE)
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=MUTED, labelsize=SMALL)
    axes.xaxis.label.set(color=MUTED, fontsize=SMALL)
    axes.yaxis.label.set(color=MUTED, fontsize=SMALL)


def iteration_axis(axes: Axes, iterations: Sequence[int], right: float = 0.0) -> None:
    """At most about eight ticks; `right` is the share of the width that is left for labels."""
    first, last = min(iterations), max(iterations)
    axes.set_xticks(list(iterations)[:: 1 + (len(iterations) - 1) // 8])
    room = max(last - first, 1)
    axes.set_xlim(first - 0.06 * room, last + (0.06 + right) * room)
    axes.set_xlabel("iteration (0 is the base policy)" if first == 0 else "iteration")


def end_labels(axes: Axes, x: float, ends: Sequence[tuple[float, str, str]]) -> None:
    """A label beside the end of each line (value, label, colour), none over another."""
    bottom, top = axes.get_ylim()
    ends = sorted(ends, key=lambda end: -end[0])
    least = _LINE / axes.bbox.height * (top - bottom)
    heights = pushed_apart([value for value, _, _ in ends], least, bottom)
    for (_, label, colour), y in zip(ends, heights, strict=True):
        axes.annotate(
            label, (x, y), (7, 0), textcoords="offset points", color=colour, va="center",
            fontweight="bold", fontsize=TEXT, annotation_clip=False,
        )  # fmt: skip
