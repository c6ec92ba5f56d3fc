"""What a report works out of its runs: everything that is drawn or written, without any layout."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import yaml

from topr_pipeline.evals import BREAKDOWN, breakdown
from topr_pipeline.report import flips
from topr_pipeline.report.run import COSTS, STAGES, Run
from topr_pipeline.report.scores import all_differences, all_scores, comparable
from topr_pipeline.tables import INT, TEXT, Table

ALL_COSTS = Table(
    "costs",
    {"experiment": (TEXT, "name of the experiment"), **COSTS.columns},
    ("experiment", "iteration", "stage"),
)
BREAKDOWNS = Table(
    "breakdown",
    {
        "experiment": (TEXT, "name of the experiment"),
        "iteration": (INT, "0 is the base policy"),
        **BREAKDOWN.columns,
    },
    ("experiment", "iteration", "column", "group", "metric"),
)


@dataclass(frozen=True)
class Analysis:
    """`scores`, `changes`, `groups` and `costs` are of all runs, by their name."""

    runs: Sequence[Run]
    scores: pl.DataFrame
    changes: pl.DataFrame
    groups: pl.DataFrame
    costs: pl.DataFrame
    flip_counts: Mapping[str, pl.DataFrame]
    flipped: Mapping[str, Sequence[flips.Flipped]]
    notes: Sequence[str]


def analysed(runs: Sequence[Run]) -> Analysis:
    """Raises ToprError for an experiment without scores."""
    scores = all_scores(runs)
    right = {run.name: flips.right_by_iteration(run) for run in runs}
    notes = [f"{run.name}: {note}" if len(runs) > 1 else note for run in runs for note in run.notes]
    notes += [
        f"{run.name} is not compared with {runs[0].name}: they share no eval prompt"
        for run in runs[1:]
        if not comparable(runs[0], run)
    ]
    costs = [run.costs.with_columns(experiment=pl.lit(run.name)) for run in runs]
    return Analysis(
        runs,
        scores,
        all_differences(runs),
        _breakdowns(runs),
        ALL_COSTS.conform(pl.concat(costs)),
        {name: flips.counts(frame) for name, frame in right.items()},
        {run.name: flips.examples(run, right[run.name]) for run in runs},
        notes,
    )


def _breakdowns(runs: Sequence[Run]) -> pl.DataFrame:
    found = [
        breakdown(
            run.values[k], run.eval_prompts, run.experiment.evaluation, run.seed
        ).with_columns(experiment=pl.lit(run.name), iteration=pl.lit(k))
        for run in runs
        for k in sorted(run.values)
    ]
    return BREAKDOWNS.conform(pl.concat(found)) if found else BREAKDOWNS.empty()


def mix_table(run: Run) -> pl.DataFrame:
    """One row a mix: rows, those replayed, prompts, p, p~, c."""
    rows = []
    for k in sorted(run.mixes):
        mix = run.mixes[k]
        old = sum(row["rows"] for row in mix["composition"] if row["iteration"] < k)
        rows.append(
            {
                "iteration": k,
                "rows": mix["rows"],
                "of earlier iterations": old,
                "p": mix["positive_share"],
                "p~": mix["effective_positive_share"],
                "baseline c": mix["baseline"],
            }
        )
    return pl.DataFrame(rows, infer_schema_length=None)


def cost_table(run: Run) -> pl.DataFrame:
    """One row an iteration: seconds by stage and in all, tokens, tokens per solved prompt."""
    rows = []
    for k in sorted(run.costs["iteration"].unique()):
        own = run.costs.filter(iteration=k)
        seconds = dict(own.select("stage", "seconds").iter_rows())
        tokens = dict(own.select("stage", "tokens").iter_rows())
        solved = solved_prompts(run.mixes.get(k, {}))
        sampled = tokens.get("solutions")
        rows.append(
            {
                "iteration": k,
                **{f"{stage}, s": seconds.get(stage) for stage in STAGES},
                "all, s": sum(seconds.values()),
                "tokens sampled": sampled,
                "tokens trained on": tokens.get("checkpoint"),
                "eval tokens": tokens.get("eval_scores"),
                "prompts solved": solved,
                "tokens per solved prompt": sampled / solved if sampled and solved else None,
            }
        )
    return pl.DataFrame(rows, infer_schema_length=None)


def solved_prompts(mix: Mapping[str, Any]) -> int | None:
    """Sampled prompts of an iteration with at least one correct sample."""
    if "solve_rates" not in mix:
        return None
    return int(sum(row["all_samples"] for row in mix["solve_rates"] if row["solve_rate"] > 0))


def effective_yaml(run: Run) -> str:
    """All keys of the experiment, with the defaults filled in."""
    said = run.experiment.model_dump(mode="json")
    return yaml.safe_dump(said, sort_keys=False, allow_unicode=True)


def differing_keys(runs: Sequence[Run]) -> list[list[str]]:
    """Rows of a key and its value in each experiment, for the keys that differ."""
    flat = [dict(_flat(run.experiment.model_dump(mode="json"))) for run in runs]
    keys = dict.fromkeys(key for each in flat for key in each)
    rows = [[key, *(_text(each[key]) if key in each else "" for each in flat)] for key in keys]
    return [row for row in rows if len(set(row[1:])) > 1]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _flat(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        return [
            pair for key, each in value.items() for pair in _flat(each, f"{path}.{key}".strip("."))
        ]
    return [(path, value)]
