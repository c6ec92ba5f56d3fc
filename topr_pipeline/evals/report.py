"""The report of an experiment: what each iteration scored, as a picture, a table and a sentence."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from topr_pipeline import tables
from topr_pipeline.errors import ToprError
from topr_pipeline.evals.plots import learning_curve

SCORES = tables.Table(
    "scores",
    {"iteration": (tables.INT, "0 is the base policy"), **tables.EVAL_SCORES.columns},
    ("iteration", "metric"),
)


def write_report(
    folder: Path,
    name: str,
    scores: Mapping[int, pl.DataFrame],
    mixes: Mapping[int, Mapping[str, float]],
) -> None:
    """Write report.md, learning_curve.png and scores.parquet into the new folder `folder`.

    `scores` holds an `eval_scores` table per iteration, `mixes` the figures of each mix (rows,
    shares, baseline). Equal inputs give equal bytes. Raises ToprError without any scores.
    """
    long = all_scores(scores)
    folder.mkdir(parents=True)
    (folder / "learning_curve.png").write_bytes(learning_curve(scores, name))
    (folder / "report.md").write_text(_markdown(name, scores, mixes), encoding="utf-8")
    SCORES.write(long, folder / "scores.parquet")


def all_scores(scores: Mapping[int, pl.DataFrame]) -> pl.DataFrame:
    """The `eval_scores` of all iterations in one long table, with a column iteration."""
    if not scores:
        raise ToprError(
            "report: there are no eval_scores; materialise them for at least one iteration"
        )
    return SCORES.conform(
        pl.concat(scores[k].with_columns(iteration=pl.lit(k)) for k in sorted(scores))
    )


def score_table(scores: Mapping[int, pl.DataFrame]) -> pl.DataFrame:
    """One row per iteration, one column per metric, as text: "0.673 [0.640, 0.705]"."""
    long = all_scores(scores)
    said = [
        _interval(value, low, high, 1 if metric == "mean_tokens" else 3)
        for metric, value, low, high in long.select("metric", "value", "low", "high").iter_rows()
    ]
    return long.with_columns(said=pl.Series(said)).pivot("metric", index="iteration", values="said")


def markdown_table(frame: pl.DataFrame) -> str:
    """`frame` as a Markdown table; four significant digits, null as an empty cell."""
    rows = [[_cell(value) for value in row] for row in [frame.columns, *frame.iter_rows()]]
    rule = ["---:" if dtype.is_numeric() else "---" for dtype in frame.dtypes]
    return "".join(f"| {' | '.join(row)} |\n" for row in [rows[0], rule, *rows[1:]])


def _markdown(
    name: str, scores: Mapping[int, pl.DataFrame], mixes: Mapping[int, Mapping[str, float]]
) -> str:
    parts = [
        f"# {name}",
        _reading(scores),
        "![Scores over iterations](learning_curve.png)",
        "## Scores",
        markdown_table(score_table(scores)).rstrip(),
        "Means over eval prompts, with bootstrap intervals over prompts in brackets.",
    ]
    if mixes:
        composition = pl.from_dicts([{"iteration": k, **mixes[k]} for k in sorted(mixes)])
        parts += ["## What each iteration was trained on", markdown_table(composition).rstrip()]
    return "\n\n".join(parts) + "\n"


def _reading(scores: Mapping[int, pl.DataFrame]) -> str:
    """One sentence: pass@1 at the first and at the last iteration."""
    first, last = min(scores), max(scores)
    before, after = (
        scores[k].row(by_predicate=pl.col("metric") == "pass@1", named=True) for k in (first, last)
    )
    was, now = (_interval(s["value"], s["low"], s["high"], 3) for s in (before, after))
    if first == last:
        return f"pass@1 is {now} at iteration {last}."
    apart = before["high"] < after["low"] or after["high"] < before["low"]
    return (
        f"pass@1 went from {was} at iteration {first} to {now} at iteration {last} "
        f"({after['value'] - before['value']:+.3f}); the intervals "
        f"{'do not overlap' if apart else 'overlap'}."
    )


def _interval(value: float, low: float, high: float, digits: int) -> str:
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:.4g}"
    return str(value).replace("|", "\\|").replace("\n", " ")
