"""Rewards of solutions: find the answer, compare it with the gold, look up what that is worth."""

from fractions import Fraction

import polars as pl

from topr_pipeline import tables
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Rewards
from topr_pipeline.progress import Progress, quiet
from topr_pipeline.rewards import gsm8k


def verify(
    solutions: pl.DataFrame, prompts: pl.DataFrame, rewards: Rewards, progress: Progress = quiet
) -> pl.DataFrame:
    """The `rewards` table of `solutions`, sorted by prompt_id and sample_index.

    Raises ToprError when a solution's prompt is not in `prompts`.
    """
    rows = joined(solutions, prompts)
    values = rewards.values.model_dump()
    golds = {gold: gsm8k.gold_value(gold) for gold in rows["gold"].unique()}
    found = []
    for text, reason, gold in rows.select("text", "finish_reason", "gold").iter_rows():
        answer = gsm8k.extract(text)
        found.append((answer, _outcome(answer, reason, golds[gold])))
    progress(rows.height, rows.height)
    answers, outcomes = zip(*found, strict=True) if found else ((), ())
    table = rows.select("prompt_id", "sample_index").with_columns(
        pl.Series("answer", answers, pl.String),
        pl.Series("outcome", outcomes, pl.String),
        pl.Series("reward", [values[o] for o in outcomes], pl.Float64),
        verifier=pl.lit(f"{gsm8k.NAME}/{gsm8k.VERSION}"),
        detail=pl.lit(None, pl.String),
    )
    return tables.REWARDS.conform(table)


def joined(solutions: pl.DataFrame, prompts: pl.DataFrame) -> pl.DataFrame:
    """`solutions` with their golds, joined by id and sorted by (prompt_id, sample_index)."""
    rows = solutions.select("prompt_id", "sample_index", "text", "finish_reason").join(
        prompts.select("prompt_id", "gold"), on="prompt_id", how="inner", validate="m:1"
    )
    if rows.height != solutions.height:
        lost = solutions.join(prompts, on="prompt_id", how="anti")["prompt_id"]
        raise ToprError(
            f"rewards: {lost.len()} solutions belong to no prompt, such as {lost[0]!r}; "
            "materialise prompts and solutions of the same experiment again"
        )
    return rows.sort("prompt_id", "sample_index")


def _outcome(answer: str | None, finish_reason: str, gold: Fraction | None) -> str:
    if gold is None:
        return "unverifiable"
    if answer is None:
        return "truncated" if finish_reason == "length" else "invalid"
    return "correct" if gsm8k.value(answer) == gold else "incorrect"
