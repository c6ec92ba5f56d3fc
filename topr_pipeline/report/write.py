"""The folder of a report.

report.html           everything, in one file
report.md             scores and mixes, for a terminal or a pull request
learning_curve.png    pass@1, pass@k and maj@k, of one experiment
plots/*.png           the plots of report.html
scores.parquet        eval_scores of all iterations
differences.parquet   paired differences between iterations and between experiments
breakdown.parquet     scores by subject, level, ...
costs.parquet         seconds and tokens by stage
"""

from collections.abc import Sequence
from pathlib import Path

from topr_pipeline.errors import ToprError
from topr_pipeline.evals import learning_curve
from topr_pipeline.report import curves, plots
from topr_pipeline.report.analysis import ALL_COSTS, BREAKDOWNS, Analysis, analysed, mix_table
from topr_pipeline.report.drawing import Drawing
from topr_pipeline.report.page import page
from topr_pipeline.report.run import Run
from topr_pipeline.report.scores import SCORES, STEPS, markdown_table, reading, score_table
from topr_pipeline.tables import atomic_path, disk_errors

PAGE = "report.html"


def write_report(folder: Path, runs: Sequence[Run]) -> Path:
    """Write the report of one experiment or several into `folder`; the path of its page.

    Files of an earlier report are replaced, others left alone. Apart from timings (report.html,
    costs.parquet and the plot of them), equal inputs give equal bytes. Raises ToprError for an
    experiment without scores, before anything is written, and for a folder that is a file or
    cannot be written to.
    """
    found = analysed(runs)
    if folder.exists() and not folder.is_dir():
        raise ToprError(f"{folder} is a file; name a folder for the report")
    drawings = draw(found)
    with disk_errors(folder):
        (folder / "plots").mkdir(parents=True, exist_ok=True)
        for each in (each for some in drawings.values() for each in some):
            (folder / "plots" / f"{each.name}.png").write_bytes(each.png)
        if len(runs) == 1:
            curve = learning_curve(runs[0].scores, runs[0].name)
            (folder / "learning_curve.png").write_bytes(curve)
        (folder / "report.md").write_text(_markdown(found), encoding="utf-8")
    SCORES.write(found.scores, folder / "scores.parquet")
    STEPS.write(found.changes, folder / "differences.parquet")
    BREAKDOWNS.write(found.groups, folder / "breakdown.parquet")
    ALL_COSTS.write(found.costs, folder / "costs.parquet")
    with atomic_path(folder / PAGE) as temporary:
        temporary.write_text(page(found, drawings), encoding="utf-8")
    return folder / PAGE


def draw(found: Analysis) -> dict[str, list[Drawing]]:
    """The plots by place: `<experiment>/<section>`, and `all` where several stand side by side."""
    drawings: dict[str, list[Drawing]] = {}
    if len(found.runs) > 1:
        drawings["all"] = curves.of_several(found.runs, found.changes)
    for run in found.runs:
        drawings |= {
            f"{run.name}/scores": curves.of_one(run),
            f"{run.name}/mixes": plots.composition(run),
            f"{run.name}/training": plots.training(run),
            f"{run.name}/rates": plots.solve_rates(run),
            f"{run.name}/costs": plots.costs(run),
            f"{run.name}/flips": plots.flips(run, found.flip_counts[run.name]),
        }
    return drawings


def _markdown(found: Analysis) -> str:
    parts = []
    for run in found.runs:
        parts += [f"# {run.name}", " ".join(reading(run, found.changes))]
        if len(found.runs) == 1:
            parts.append("![Scores over iterations](learning_curve.png)")
        parts += [
            "## Scores",
            markdown_table(score_table(run.scores)).rstrip(),
            "Means over eval prompts, with bootstrap intervals over prompts in brackets.",
        ]
        if run.mixes:
            parts += [
                "## What each iteration was trained on",
                markdown_table(mix_table(run)).rstrip(),
            ]
    parts += [f"- {note}" for note in found.notes]
    return "\n\n".join(parts) + "\n"
