"""The tables that `topr` prints."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from topr_pipeline.components.launch import Launched
    from topr_pipeline.components.plan import Planned
    from topr_pipeline.rewards import FileSummary


def _console(stderr: bool = False) -> Console:
    """Into a file or a pipe, lines are 110 wide, so that tables are not squeezed."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(highlight=False, stderr=stderr, width=None if stream.isatty() else 110)


out, err = _console(), _console(stderr=True)

COLOURS = {
    "fresh": "green",
    "made": "green",
    "unchanged": "cyan",
    "failed": "red",
    "check failed": "red",
    "blocked": "yellow",
}


def show_plan(planned: "Sequence[Planned]") -> None:
    """Every asset's state and why."""
    table = Table("asset", "state", "why", "seconds", "figure", box=None, header_style="bold")
    for p in planned:
        seconds, headline = _known(p) if p.state == "fresh" else ("", "")
        table.add_row(p.key, _coloured(p.state), p.reason, seconds, headline)
    out.print(table)


def show_outcome(
    before: "Sequence[Planned]", after: "Sequence[Planned]", launched: "Launched"
) -> None:
    """What a run did with each asset: the closing table."""
    table = Table("asset", "state", "seconds", "figure", box=None, header_style="bold")
    for old, new in zip(before, after, strict=True):
        state = _outcome(old, new, launched)
        seconds, headline = _known(new)
        if state not in ("made", "check failed"):
            seconds = ""
        if state in ("failed", "blocked"):
            headline = ""
        table.add_row(new.key, _coloured(state), seconds, headline)
    out.print(table)


def _outcome(old: "Planned", new: "Planned", launched: "Launched") -> str:
    if new.key in launched.failures:
        return "failed"
    if new.key not in launched.executed:
        return "fresh" if old.state == "fresh" else "blocked"
    if new.manifest and new.manifest.failed_checks:
        return "check failed"
    return "unchanged" if _made(old) == _made(new) else "made"


def _made(planned: "Planned") -> object:
    manifest = planned.manifest
    return manifest and (manifest.data_version, manifest.inputs, manifest.code, manifest.seconds)


def show_failures(after: "Sequence[Planned]", launched: "Launched") -> bool:
    """Each error once, with its asset; whether there was any."""
    said = set()
    for key, message in launched.failures.items():
        if message not in said:
            err.print(f"[red]{key} failed:[/red]", escape(message.strip()), soft_wrap=True)
        said.add(message)
    for p in after:
        for name, message in (p.manifest.failed_checks if p.manifest else {}).items():
            failed = f"[red]{p.key}, check {name} failed:[/red]"
            err.print(failed, escape(message), soft_wrap=True)
            said.add(message)
    if not (said or launched.success):
        said.add("")
        err.print(f"[red]the run failed:[/red] see {launched.run_id} in the UI (`make dev`)")
    return bool(said)


def show_verified(graded: "FileSummary") -> None:
    """Outcomes of the rows of a file, and where they were written."""
    table = Table("outcome", "rows", "share", box=None, header_style="bold")
    for outcome, count in graded.summary.counts.items():
        table.add_row(outcome, str(count), f"{graded.summary.shares[outcome]:.1%}")
    out.print(table)
    how = graded.report
    out.print(f"{how.rows} rows, {how.pairs} different pairs, {how.seconds:.1f} s")
    out.print(f"Written to {graded.output}", soft_wrap=True)


def show_frame(frame: pl.DataFrame) -> None:
    """A polars frame as a table."""
    table = Table(*frame.columns, box=None, header_style="bold")
    for row in frame.iter_rows():
        table.add_row(*("" if v is None else escape(str(v)) for v in row))
    out.print(table)


def show_scores(scores: Mapping[int, pl.DataFrame]) -> None:
    """pass@k, maj@k and the invalid share of each iteration, with their intervals."""
    from topr_pipeline.report import score_table

    shown = pl.col("metric").str.contains("^pass@|^maj@|^invalid$")
    show_frame(score_table({k: frame.filter(shown) for k, frame in scores.items()}))


def short(path: Path) -> str:
    """The path from the current folder, where it lies below it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def size(count: int) -> str:
    """A number of bytes."""
    return f"{count:,} bytes" if count < 10_000 else f"{count / 1e6:,.2f} MB"


def _known(planned: "Planned") -> tuple[str, str]:
    manifest = planned.manifest
    return (f"{manifest.seconds:.1f}", manifest.headline) if manifest else ("", "")


def _coloured(state: str) -> str:
    colour = COLOURS.get(state, "yellow")
    return f"[{colour}]{state}[/{colour}]"
