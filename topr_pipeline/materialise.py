"""`topr run` of one experiment: check, plan, launch, and say what came of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from topr_pipeline.components.launch import launch, project_instance
from topr_pipeline.components.plan import Planned, plan
from topr_pipeline.components.project import Project
from topr_pipeline.components.runs import recorded_version
from topr_pipeline.components.stages import check_inputs
from topr_pipeline.components.topr_experiment import TOPRExperiment
from topr_pipeline.display import (
    out,
    short,
    show_failures,
    show_outcome,
    show_plan,
    show_scores,
)
from topr_pipeline.errors import ToprError
from topr_pipeline.report import PAGE
from topr_pipeline.solutions import check_engine
from topr_pipeline.tables import EVAL_SCORES

if TYPE_CHECKING:
    import dagster as dg


def materialise(
    project: Project,
    chosen: TOPRExperiment,
    through: int | None,
    dry_run: bool,
    force: list[str],
) -> bool:
    """Make what of one experiment is missing or stale, through iteration `through`; did it work?

    `force` names assets that are made again. Errors that can be known before are raised, as
    ToprError, before anything is launched.
    """
    forced = [_asset(said, chosen) for said in force]
    check_inputs(chosen.experiment, chosen.root)
    if not dry_run:
        check_engine(chosen.experiment.sampling.engine)
    with project_instance(project.root) as instance:
        before = planned_assets(project, chosen, instance, forced, through)
        if beyond := set(forced) - {p.key for p in before}:
            raise ToprError(f"--force {', '.join(beyond)} lies beyond --through {through}")
        wanted = [p for p in before if p.state != "fresh"]
        if dry_run or not wanted:
            _say_plan(chosen.name, before, len(wanted), dry_run)
        else:
            out.print(f"{chosen.name}: {len(wanted)} of {len(before)} assets to make")
            started = time.monotonic()
            launched = launch(
                project.definitions, chosen.name, instance, project.data, wanted, forced
            )
            after = planned_assets(project, chosen, instance, through=through)
            show_outcome(before, after, launched)
            out.print(f"{time.monotonic() - started:.0f} s in all")
            if show_failures(after, launched):
                return False
            before = after
    if not dry_run:
        _show_fresh_scores(project, before)
    return True


def _say_plan(name: str, planned: Sequence[Planned], wanted: int, dry_run: bool) -> None:
    if not wanted:
        out.print(f"{name}: all {len(planned)} assets are fresh, nothing to run.")
    elif dry_run:
        show_plan(planned)
        out.print(f"{name}: {wanted} of {len(planned)} assets would run")


def planned_assets(
    project: Project,
    chosen: TOPRExperiment,
    instance: dg.DagsterInstance,
    forced: Sequence[str] = (),
    through: int | None = None,
) -> list[Planned]:
    """The state of the experiment's assets, on disk and in the instance, through an iteration."""
    planned = plan(
        chosen.nodes(), project.data, lambda key: recorded_version(instance, key), forced
    )
    if through is None or through >= chosen.experiment.iterations:
        return planned
    return [p for p in planned if p.node.stage != "report" and (p.node.iteration or 0) <= through]


def _asset(said: str, chosen: TOPRExperiment) -> str:
    nodes = chosen.nodes()
    for key in (said, f"{chosen.name}/{said}"):
        if key in nodes:
            return key
    near = get_close_matches(said, [k.partition("/")[2] for k in nodes], 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ToprError(f"--force {said}: {chosen.name} has no such asset{hint}")


def _show_fresh_scores(project: Project, planned: Sequence[Planned]) -> None:
    """The scores of the iterations that are fresh, if any is, and where the report is."""
    scores = {
        p.node.iteration or 0: EVAL_SCORES.read(p.node.path(project.data) / "scores.parquet")
        for p in planned
        if p.node.stage == "eval_scores" and p.state == "fresh"
    }
    if not scores:
        return
    show_scores(scores)
    for p in planned:
        if p.node.stage == "report" and p.state == "fresh":
            out.print(f"Report: {short(p.node.path(project.data) / PAGE)}", soft_wrap=True)
    out.print("UI: `make dev`, then http://127.0.0.1:3000")
