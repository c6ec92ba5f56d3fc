"""Rewards of solutions: find the answer, compare it with the gold, look up what that is worth."""

from pathlib import Path

import polars as pl

from topr_pipeline import tables
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Rewards
from topr_pipeline.progress import Progress, quiet
from topr_pipeline.rewards import grading, gym
from topr_pipeline.rewards.grading import VerifyReport


def verify(
    solutions: pl.DataFrame,
    prompts: pl.DataFrame,
    rewards: Rewards,
    progress: Progress = quiet,
    cache: Path | None = None,
) -> pl.DataFrame:
    """The `rewards` table of `solutions`, sorted by prompt_id and sample_index.

    `cache` is a folder in which slow verdicts are kept for later runs. Raises ToprError when a
    solution's prompt is not in `prompts` or the verifier cannot be used.
    """
    return verify_reported(solutions, prompts, rewards, progress, cache)[0]


def verify_reported(
    solutions: pl.DataFrame,
    prompts: pl.DataFrame,
    rewards: Rewards,
    progress: Progress = quiet,
    cache: Path | None = None,
) -> tuple[pl.DataFrame, VerifyReport]:
    """As `verify`, with the account of how the verdicts came about."""
    rows = _joined(solutions, prompts, rewards.verifier == "reasoning_gym")
    graded, report = grading.grade(rows, rewards, cache, progress)
    if solutions.height != graded.height:
        raise AssertionError(f"{solutions.height} solutions gave {graded.height} rewards")
    return tables.REWARDS.conform(graded), report


def _joined(solutions: pl.DataFrame, prompts: pl.DataFrame, with_entry: bool) -> pl.DataFrame:
    """`solutions` with their golds, joined by id and sorted by (prompt_id, sample_index)."""
    for name, table, ids in (
        ("prompts", prompts, ["prompt_id"]),
        ("solutions", solutions, ["prompt_id", "sample_index"]),
    ):
        twice = table.filter(pl.struct(ids).is_duplicated())
        if twice.height:
            raise ToprError(
                f"rewards: the {name} hold {'/'.join(ids)} {twice.select(ids).row(0)} more than "
                "once; wanted is one row for each; materialise them again"
            )
    golds = prompts.select("prompt_id", "gold")
    if with_entry:
        metas = prompts["meta"] if "meta" in prompts.columns else [None] * prompts.height
        entries = [gym.entry(g, m) for g, m in zip(prompts["gold"], metas, strict=True)]
        golds = golds.with_columns(pl.Series("gold", entries, pl.String))
    rows = solutions.select("prompt_id", "sample_index", "text", "finish_reason").join(
        golds, on="prompt_id", how="inner", validate="m:1"
    )
    if rows.height != solutions.height:
        lost = solutions.join(prompts, on="prompt_id", how="anti")["prompt_id"]
        raise ToprError(
            f"rewards: {lost.len()} solutions belong to no prompt, such as {lost[0]!r}; "
            "materialise prompts and solutions of the same experiment again"
        )
    return rows.sort("prompt_id", "sample_index")
