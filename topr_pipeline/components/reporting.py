"""What a report is made of: the finished artifacts of an experiment, and what they cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from topr_pipeline.components.graph import Node
from topr_pipeline.components.manifest import Manifest, read_manifest
from topr_pipeline.components.plan import Planned
from topr_pipeline.evals import by_prompt
from topr_pipeline.experiment import Experiment
from topr_pipeline.mixes.pairing import KEY
from topr_pipeline.report import COSTS, Run
from topr_pipeline.tables import EVAL_SCORES, PROMPTS, REWARDS, SOLUTIONS, TIMED, TRAINING_LOG

MOST_NOTES = 12


def run_of(
    name: str,
    nodes: Mapping[str, Node],
    experiment: Experiment,
    data: Path,
    notes: Sequence[str] = (),
) -> Run:
    """Everything of the experiment that is finished, fresh or stale.

    Raises ToprError for an artifact that cannot be read.
    """
    finished = {
        key: manifest
        for key, node in nodes.items()
        if (manifest := read_manifest(node.manifest_path(data))) and node.path(data).exists()
    }
    made = [nodes[key] for key in finished]
    evals = {n.iteration or 0: n.path(data) for n in made if n.stage == "eval_scores"}
    scores = {k: EVAL_SCORES.read(folder / "scores.parquet") for k, folder in evals.items()}
    logs = {
        n.iteration or 0: TRAINING_LOG.read(n.path(data) / TIMED)
        for n in made
        if n.stage in ("base_policy", "checkpoint") and (n.path(data) / TIMED).exists()
    }
    prompts = nodes[f"{name}/eval_prompts"]
    return Run(
        name,
        experiment,
        PROMPTS.read(prompts.path(data)) if prompts.key in finished else PROMPTS.empty(),
        scores,
        {k: _values(folder, scores[k]) for k, folder in evals.items()},
        {k: _answers(folder) for k, folder in evals.items()},
        {n.iteration or 0: finished[n.key].figures for n in made if n.stage == "mix"},
        logs,
        _costs(made, finished, logs),
        notes,
    )


def notes_of(planned: Sequence[Planned]) -> list[str]:
    """What is missing or stale of an experiment, in a few lines."""
    found = [
        f"{p.key.partition('/')[2]} is {p.state}: {p.reason}"
        for p in planned
        if p.state in ("missing", "stale") and p.node.stage != "report"
    ]
    more = len(found) - MOST_NOTES
    return [*found[:MOST_NOTES], *([f"and {more} more; see `topr status`"] if more > 0 else [])]


def _values(folder: Path, scores: pl.DataFrame) -> pl.DataFrame:
    """What the scores were made from, by prompt."""
    ks = {int(m[5:]) for m in scores["metric"] if m.startswith("pass@")} - {1}
    tokens = SOLUTIONS.scan(folder / "solutions.parquet").select(*KEY, "token_ids").collect()
    return by_prompt(REWARDS.read(folder / "rewards.parquet"), tokens, sorted(ks))


def _answers(folder: Path) -> pl.LazyFrame:
    """The eval's samples with their verdicts; texts are read of those that are asked for alone."""
    texts = SOLUTIONS.scan(folder / "solutions.parquet").select(*KEY, "text")
    verdicts = REWARDS.scan(folder / "rewards.parquet").select(*KEY, "answer", "outcome")
    return verdicts.join(texts, on=KEY, how="left")


def _costs(
    made: Sequence[Node], finished: Mapping[str, Manifest], logs: Mapping[int, pl.DataFrame]
) -> pl.DataFrame:
    rows: list[dict[str, Any]] = []
    for node in made:
        if node.iteration is None:
            continue
        k, manifest = node.iteration, finished[node.key]
        trained = node.stage in ("base_policy", "checkpoint")
        tokens = logs[k]["tokens"].sum() if trained and k in logs else None
        rows.append(
            {
                "iteration": k,
                "stage": "checkpoint" if trained else node.stage,
                "seconds": manifest.seconds,
                "tokens": manifest.figures.get("tokens", tokens),
            }
        )
    return COSTS.conform(pl.DataFrame(rows, schema=COSTS.schema))
