"""What a rewards table says: for the metadata of the asset, a terminal, and plots."""

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from topr_pipeline.tables import OUTCOMES

EXAMPLES = 3
EXCERPT = 300
BINS = 10


@dataclass(frozen=True)
class Summary:
    """Figures of a rewards table.

    `shares` by outcome; `solve_rates` counts prompts by their share of correct samples, in BINS
    equal bins of [0, 1] (1 falls into the last); `none_correct` and `all_correct` count
    prompts; `unrewarded` counts rows with a null reward, which are never trained on.
    """

    rows: int
    prompts: int
    counts: Mapping[str, int]
    shares: Mapping[str, float]
    solve_rates: tuple[int, ...]
    none_correct: int
    all_correct: int
    unrewarded: int
    mean_reward: float | None


def summarise(table: pl.DataFrame) -> Summary:
    """The figures of a `rewards` table (columns outcome, reward and, if any, prompt_id)."""
    found = dict(table.group_by("outcome").len().iter_rows())
    counts = {outcome: found.get(outcome, 0) for outcome in OUTCOMES}
    rates = _solve_rates(table)
    bins = (rates * BINS + 1e-9).floor().clip(0, BINS - 1).cast(pl.Int64)
    mean = table["reward"].mean()
    return Summary(
        rows=table.height,
        prompts=len(rates),
        counts=counts,
        shares={o: n / table.height if table.height else 0.0 for o, n in counts.items()},
        solve_rates=tuple(int((bins == at).sum()) for at in range(BINS)),
        none_correct=int((rates == 0).sum()),
        all_correct=int((rates == 1).sum()),
        unrewarded=table["reward"].null_count(),
        mean_reward=mean if isinstance(mean, float) else None,
    )


def _solve_rates(table: pl.DataFrame) -> pl.Series:
    """Per prompt the share of its samples that are correct."""
    if "prompt_id" not in table.columns:
        return pl.Series([], dtype=pl.Float64)
    correct = (pl.col("outcome") == "correct").mean()
    return table.group_by("prompt_id").agg(rate=correct)["rate"]


def examples(table: pl.DataFrame, solutions: pl.DataFrame, prompts: pl.DataFrame) -> pl.DataFrame:
    """Up to EXAMPLES rows per outcome: outcome, answer, gold, detail and the completion's end."""
    rows = (
        table.select("prompt_id", "sample_index", "outcome", "answer", "detail")
        .group_by("outcome", maintain_order=True)
        .head(EXAMPLES)
    )
    texts = solutions.select("prompt_id", "sample_index", "text")
    joined = rows.join(texts, on=["prompt_id", "sample_index"], how="left", maintain_order="left")
    joined = joined.join(
        prompts.select("prompt_id", "gold"), on="prompt_id", how="left", maintain_order="left"
    )
    short = [pl.col(c).str.tail(EXCERPT) for c in ("answer", "gold", "detail", "text")]
    return joined.select("outcome", *short)
