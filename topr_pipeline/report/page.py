"""The page: what was analysed and drawn, put into `page.html.jinja`.

Jinja escapes everything that is put in but the plots, which are ours; so nothing that a model, a
prompt or a YAML file says becomes markup.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from topr_pipeline.report.analysis import (
    Analysis,
    cost_table,
    differing_keys,
    effective_yaml,
    mix_table,
)
from topr_pipeline.report.curves import WORDS, ranked
from topr_pipeline.report.drawing import Drawing
from topr_pipeline.report.flips import KINDS
from topr_pipeline.report.run import Run
from topr_pipeline.report.scores import change, interval, metric_of, reading, score_table, steps

HERE = Path(__file__).parent
RISES = ("pass@", "maj@", "weighted_maj@", "best@")
FALLS = ("invalid", "truncated", "unverifiable", "none_correct", "few_correct")


@dataclass(frozen=True)
class Cell:
    """`kind` is the cell's CSS class: number, good, bad or nothing."""

    text: str
    kind: str = ""


@dataclass(frozen=True)
class TableOf:
    """Heads and rows of a table of the page."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def page(found: Analysis, drawings: Mapping[str, Sequence[Drawing]]) -> str:
    """The page as one text that needs nothing else."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    runs = found.runs
    return environment.get_template("page.html.jinja").render(
        title=" against ".join(run.name for run in runs),
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        notes=found.notes,
        several=len(runs) > 1,
        side_by_side=drawings.get("all", ()),
        latest=_latest(runs),
        against=_against(found),
        differing=_texts(["key", *(run.name for run in runs)], differing_keys(runs)),
        experiments=[_experiment(run, found, drawings) for run in runs],
    )


def _experiment(
    run: Run, found: Analysis, drawings: Mapping[str, Sequence[Drawing]]
) -> dict[str, Any]:
    own = found.changes.filter(experiment=run.name, against=run.name)
    return {
        "name": run.name,
        "description": run.experiment.description,
        "reading": reading(run, found.changes),
        "tiles": _tiles(run, own),
        "scores": _scores(run),
        "steps": _steps(run, own),
        "groups": _groups(run, found.groups.filter(experiment=run.name)),
        "mixes": _numbers(mix_table(run)),
        "costs": _numbers(cost_table(run)),
        "flipped": found.flipped[run.name],
        "kinds": KINDS,
        "yaml": effective_yaml(run),
        "drawings": {
            section: drawings.get(f"{run.name}/{section}", ())
            for section in ("scores", "mixes", "training", "rates", "costs", "flips")
        },
    }


def _tiles(run: Run, own: pl.DataFrame) -> list[dict[str, str]]:
    """The latest value of the main metrics, and what the last iteration changed."""
    last = max(run.scores)
    there = set(run.scores[last]["metric"])
    tiles = []
    for metric in [*ranked(run), "invalid"]:
        if metric not in there:
            continue
        now = metric_of(run.scores[last], metric)
        step = [r for r in own.filter(metric=metric, iteration=last).iter_rows(named=True)][:1]
        tiles.append(
            {
                "name": metric,
                "value": f"{now['value']:.1%}",
                "interval": f"{now['low']:.1%} to {now['high']:.1%}",
                "change": f"{change(step[0])} from iteration {step[0]['against_iteration']}"
                if step
                else "",
                "kind": _judged(step[0]) if step else "",
            }
        )
    return tiles


def _judged(row: Mapping[str, Any]) -> str:
    """good or bad where a difference is clear and has a direction that is wanted."""
    if row["verdict"] == "unclear":
        return ""
    up = row["verdict"] == "higher"
    if row["metric"].startswith(RISES):
        return "good" if up else "bad"
    return ("bad" if up else "good") if row["metric"] in FALLS else ""


def _scores(run: Run) -> TableOf:
    """A row per metric, a column per iteration."""
    table = score_table(run.scores)
    rows = [
        [Cell(WORDS.get(metric, metric)), *(Cell(said or "", "number") for said in table[metric])]
        for metric in table.columns[1:]
    ]
    return TableOf(["", *(f"iteration {k}" for k in table["iteration"])], rows)


def _steps(run: Run, own: pl.DataFrame) -> TableOf | None:
    """A row per metric, a column per pair of iterations."""
    pairs = steps(run)
    if not pairs:
        return None
    cells = {
        (row["metric"], row["against_iteration"], row["iteration"]): Cell(
            change(row), f"number {_judged(row)}"
        )
        for row in own.iter_rows(named=True)
    }
    rows = [
        [Cell(WORDS.get(metric, metric)), *(cells.get((metric, *pair), Cell("")) for pair in pairs)]
        for metric in own["metric"].unique(maintain_order=True)
    ]
    return TableOf(["", *(f"{before} to {after}" for before, after in pairs)], rows)


def _groups(run: Run, groups: pl.DataFrame) -> list[tuple[str, TableOf]]:
    """pass@1 by each column that breaks the eval prompts down: a row a group, iterations beside."""
    found = []
    iterations = sorted(run.values)
    for (column,), rows in groups.filter(metric="pass@1").group_by("column", maintain_order=True):
        cells = {(row["group"], row["iteration"]): row for row in rows.iter_rows(named=True)}
        body = [
            [
                Cell(group),
                Cell(
                    str(max(cells[group, k]["n"] for k in iterations if (group, k) in cells)),
                    "number",
                ),
                *(
                    Cell(_interval_of(cells[group, k]), "number")
                    if (group, k) in cells
                    else Cell("")
                    for k in iterations
                ),
            ]
            for group in rows["group"].unique(maintain_order=True)
        ]
        head = [str(column), "prompts", *(f"iteration {k}" for k in iterations)]
        found.append((str(column), TableOf(head, body)))
    return found


def _interval_of(row: Mapping[str, Any]) -> str:
    return interval(row["value"], row["low"], row["high"], row["metric"])


def _latest(runs: Sequence[Run]) -> TableOf:
    """The last iteration of each experiment."""
    metrics = [m for m in ranked(runs[0]) if all(m in ranked(run) for run in runs)]
    metrics = [*metrics, "invalid", "mean_tokens"]
    rows = []
    for run in runs:
        last = max(run.scores)
        there = set(run.scores[last]["metric"])
        said = [interval(**metric_of(run.scores[last], m)) if m in there else "" for m in metrics]
        rows.append([Cell(run.name), Cell(str(last), "number"), *(Cell(s, "number") for s in said)])
    return TableOf(["experiment", "iteration", *(WORDS.get(m, m) for m in metrics)], rows)


def _against(found: Analysis) -> TableOf | None:
    """Each experiment less the first, at the last iteration that both have: a column each."""
    paired = found.changes.filter(pl.col("experiment") != pl.col("against"))
    if paired.is_empty():
        return None
    last = paired.filter(pl.col("iteration") == pl.col("iteration").max().over("experiment"))
    others = last.select("experiment", "iteration").unique(maintain_order=True).rows()
    cells = {
        (row["metric"], row["experiment"]): Cell(change(row), f"number {_judged(row)}")
        for row in last.iter_rows(named=True)
    }
    rows = [
        [Cell(WORDS.get(m, m)), *(cells.get((m, name), Cell("")) for name, _ in others)]
        for m in last["metric"].unique(maintain_order=True)
    ]
    return TableOf(["", *(f"{name}, iteration {k}" for name, k in others)], rows)


def _texts(head: Sequence[str], rows: Sequence[Sequence[str]]) -> TableOf:
    return TableOf(head, [[Cell(text) for text in row] for row in rows])


def _numbers(frame: pl.DataFrame) -> TableOf | None:
    """None for no rows; columns without any value are left out."""
    kept = [c for c in frame.columns if frame[c].null_count() < frame.height]
    if frame.is_empty():
        return None
    rows = [[Cell(_said(v), "number") for v in row] for row in frame.select(kept).iter_rows()]
    return TableOf(kept, rows)


def _said(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3f}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
