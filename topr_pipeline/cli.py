"""`topr`: materialise what is missing or stale, and say how things stand."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from topr_pipeline.display import (
    err,
    out,
    short,
    show_frame,
    show_plan,
    show_scores,
    show_verified,
    size,
)
from topr_pipeline.errors import ToprError

if TYPE_CHECKING:
    from topr_pipeline.components.project import Project

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__
)
SHOWN = 100
Names = Annotated[list[str] | None, typer.Argument(metavar="[EXPERIMENT]...")]


@contextmanager
def _user_errors() -> Generator[None]:
    try:
        yield
    except ToprError as error:
        err.print("[red]error:[/red]", escape(str(error)), soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        err.print("Interrupted. What was finished is kept; run the same command to go on.")
        raise typer.Exit(130) from None


def _load() -> Project:
    from topr_pipeline.components.project import load_project

    return load_project()


@app.command()
def run(
    experiment: Names = None,
    through: Annotated[
        int | None, typer.Option(min=0, help="Stop after this iteration.", metavar="K")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would run.")] = False,
    force: Annotated[
        list[str] | None,
        typer.Option(help="Make this asset again, e.g. iter_01/mix.", metavar="ASSET"),
    ] = None,
) -> None:
    """Materialise what is missing or stale, and nothing else, in one Dagster run."""
    from topr_pipeline.materialise import materialise

    with _user_errors():
        project = _load()
        worked = [
            materialise(project, chosen, through, dry_run, force or [])
            for chosen in project.chosen(experiment)
        ]
        if not all(worked):
            raise typer.Exit(1)


@app.command()
def status(
    experiment: Names = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per asset.")] = False,
) -> None:
    """Say of every asset whether it is fresh, missing or stale, and why."""
    from topr_pipeline.components.launch import project_instance
    from topr_pipeline.materialise import planned_assets

    with _user_errors():
        project = _load()
        names = experiment or list(project.experiments)
        with project_instance(project.root) as instance:
            for chosen in project.chosen(names):
                planned = planned_assets(project, chosen, instance)
                if as_json:
                    for p in planned:
                        typer.echo(json.dumps(p.record()))
                else:
                    show_plan(planned)


@app.command()
def report(
    experiment: Annotated[list[str], typer.Argument(metavar="EXPERIMENT...")],
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for it. Default: the asset's, or reports/ beside it for what is "
            "unfinished and for several experiments.",
            metavar="DIR",
        ),
    ] = None,
) -> None:
    """Print scores and write the report of an experiment, or of several side by side."""
    from topr_pipeline.components.plan import plan
    from topr_pipeline.components.reporting import notes_of, run_of
    from topr_pipeline.report import PAGE, write_report

    with _user_errors():
        project = _load()
        chosen = project.chosen(experiment)
        plans = [plan(each.nodes(), project.data) for each in chosen]
        runs = [
            run_of(each.name, each.nodes(), each.experiment, project.data, notes_of(planned))
            for each, planned in zip(chosen, plans, strict=True)
        ]
        finished = output is None and len(runs) == 1 and plans[0][-1].state == "fresh"
        if finished:
            page = plans[0][-1].node.path(project.data) / PAGE
        else:
            below = project.data / chosen[0].name / "reports"
            page = write_report(output or below / "_vs_".join(r.name for r in runs), runs)
        for run in runs:
            if len(runs) > 1:
                out.print(f"[bold]{run.name}[/bold]")
            show_scores(run.scores)
        out.print(f"Report: {short(page)}", soft_wrap=True)


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="JSONL, CSV or Parquet.")],
    verifier: Annotated[str, typer.Option(help="gsm8k, math, exact, choice, ... or python:a.b:c")],
    completion: Annotated[str, typer.Option(help="Column of the completions.")] = "completion",
    gold: Annotated[str, typer.Option(help="Column of the right answers.")] = "gold",
    output: Annotated[
        Path | None, typer.Option(help="Default: FILE with .verified before its ending.")
    ] = None,
) -> None:
    """Grade the completions in a file: its columns, and answer, outcome, reward, detail."""
    from pydantic import ValidationError

    from topr_pipeline.experiment import Rewards
    from topr_pipeline.progress import Shown
    from topr_pipeline.rewards import verify_file

    with _user_errors():
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)  # for a function of the user's own; workers inherit it
        try:
            rewards = Rewards(verifier=verifier)
        except ValidationError as error:
            (detail,) = error.errors()
            said = detail["msg"].removeprefix("Value error, ")
            raise ToprError(f"--verifier {verifier}: {said}") from None
        with Shown(file.name, "rows", out.print) as progress:
            graded = verify_file(file, rewards, completion, gold, output, progress=progress)
        show_verified(graded)
        if graded.reason:
            out.print(f"First unverifiable {escape(graded.reason)}", soft_wrap=True)


@app.command()
def sql(
    query: Annotated[str, typer.Argument(help="One SELECT over the views.")] = "",
    output: Annotated[
        Path | None, typer.Option(help="CSV, Parquet or JSONL file for the rows.")
    ] = None,
) -> None:
    """Query the tables of all experiments and iterations; without a query, say what there is."""
    from topr_pipeline import views
    from topr_pipeline.definitions import data_root

    with _user_errors():
        if not query:
            show_frame(views.described())
            return
        if output:
            views.check_output(output)
        found = views.query(query, data_root(), most=None if output else SHOWN + 1)
        if output:
            views.write(found, output)
            out.print(f"{found.height} rows written to {output}", soft_wrap=True)
        else:
            show_frame(found.head(SHOWN))
            if found.height > SHOWN:
                out.print(f"There are more than {SHOWN} rows; --output FILE has them all")


@app.command()
def diff(
    experiment: Annotated[str, typer.Argument()],
    iteration: Annotated[int, typer.Argument(min=1, help="From 2 on.")],
) -> None:
    """Say what changed between the mix of an iteration and the one before it."""
    from topr_pipeline.components.diff import difference

    with _user_errors():
        project = _load()
        (chosen,) = project.chosen([experiment])
        found = difference(chosen.name, chosen.nodes(), iteration, project.data)
        named = {"before": f"iteration {found.before}", "after": f"iteration {found.after}"}
        show_frame(found.figures.rename(named))
        for note in found.notes:
            out.print(note, soft_wrap=True)


@app.command()
def export(
    experiment: Annotated[str, typer.Argument()],
    iteration: Annotated[int, typer.Argument(min=1)],
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    solutions: Annotated[
        bool, typer.Option("--solutions", help="All solutions instead of the mix.")
    ] = False,
    license: Annotated[str, typer.Option(help="For the card.")] = "unknown",
    hub: Annotated[
        str | None, typer.Option(help="Upload it too, as this private data set.", metavar="REPO")
    ] = None,
) -> None:
    """Write an iteration's mix as a data set with a card, and as JSONL for SFT and DPO."""
    from topr_pipeline.components.plan import plan
    from topr_pipeline.export import export as write_set
    from topr_pipeline.export import upload

    with _user_errors():
        project = _load()
        (chosen,) = project.chosen([experiment])
        what = "solutions" if solutions else "mix"
        key = f"{chosen.name}/iter_{iteration:02d}/{what}"
        planned = plan(chosen.nodes(), project.data)
        stale = next((p.reason for p in planned if p.key == key), "")
        written = write_set(
            chosen.name, chosen.experiment, iteration, what, project.data, folder, license, stale
        )
        if stale:
            out.print(f"{key} is stale ({stale}): the card shows the YAML as it is now")
        for file, rows in written.items():
            out.print(f"{folder / file}: {rows:,} rows", soft_wrap=True)
        if hub:
            out.print(f"Uploaded to {upload(folder, hub)}", soft_wrap=True)


@app.command()
def clean(
    experiment: Names = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Remove samples that no present policy and configuration uses, and what killed runs left.

    Artifacts are never removed.
    """
    from topr_pipeline.components.clean import clean as clean_one

    with _user_errors():
        project = _load()
        for chosen in project.chosen(experiment):
            found = clean_one(chosen.name, chosen.nodes(), chosen.experiment, project.data, dry_run)
            for leftover in found:
                out.print(f"{short(leftover.path)}: {size(leftover.size)}, {leftover.why}")
            total = size(sum(leftover.size for leftover in found))
            out.print(f"{chosen.name}: {total} {'would be' if dry_run else 'were'} removed")


if __name__ == "__main__":
    app()
