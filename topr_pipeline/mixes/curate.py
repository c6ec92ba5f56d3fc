"""Curation: which rewarded solutions are trained on, and with which advantage."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from topr_pipeline import tables
from topr_pipeline.checks import Check
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Mix, MixStep
from topr_pipeline.mixes.baseline import baseline_for_rewards, effective_share_of_rewards
from topr_pipeline.mixes.pairing import KEY, paired
from topr_pipeline.mixes.strategies import STRATEGIES


@dataclass(frozen=True)
class Curated:
    """A `mix` table sorted by (iteration, prompt_id, sample_index), and how it came about.

    `positive_share` is the share of rows with R > 0 (p), `effective_positive_share` their part of
    the mass of advantages under the baseline (p~). `waterfall` says how many rows each step left.
    """

    frame: pl.DataFrame
    baseline: float
    positive_share: float
    effective_positive_share: float
    waterfall: Sequence[tuple[str, int]]


def curate(
    solutions: pl.DataFrame | pl.LazyFrame, rewards: pl.DataFrame, mix: Mix, iteration: int
) -> Curated:
    """Drop null rewards, apply `mix.steps` in order, subtract the baseline (0 when none is given).

    Lazy `solutions` are read twice: the keys, and the tokens of the rows that are kept. The order
    of the rows that come in does not matter. A mix with one sign of advantages is only
    refused where an effective share is to be reached: see `checks`.

    Raises ToprError when rewards and solutions do not fit, when no row is left, when all advantages
    are 0, and when no baseline gives `mix.effective_positive_share`.
    """
    keys = solutions.lazy().select(KEY).collect()
    rows = paired(keys, rewards.select(*KEY, "outcome", "reward")).sort(KEY)
    waterfall = [("rewards", rows.height)]
    rows = rows.drop_nulls("reward")
    waterfall.append(("with a reward", rows.height))
    for step in mix.steps:
        rows = STRATEGIES[step.strategy](rows.lazy(), step).collect()
        waterfall.append((_label(step), rows.height))
    if rows.is_empty():
        raise _nothing_left(waterfall, iteration)
    by_reward: dict[float, float] = dict(rows.group_by("reward").len().iter_rows())
    if mix.effective_positive_share is None:
        baseline = mix.baseline or 0.0
    else:
        baseline = baseline_for_rewards(by_reward, mix.effective_positive_share)
    return Curated(
        frame=_mix_table(rows, solutions.lazy(), baseline, iteration),
        baseline=baseline,
        positive_share=sum(n for reward, n in by_reward.items() if reward > 0) / rows.height,
        effective_positive_share=effective_share_of_rewards(by_reward, baseline),
        waterfall=tuple(waterfall),
    )


def checks(table: pl.DataFrame, mix: Mix) -> list[Check]:
    """The blocking checks: enough rows with an advantage above 0, and below 0?

    Advantages are counted, not rewards: they are what is trained on (`baseline: -1` leaves none of
    the negatives, and needs `min_negatives: 0`).
    """
    advantage = table["advantage"]
    return [
        _enough("min_positives", int((advantage > 0).sum()), mix.min_positives, "above"),
        _enough("min_negatives", int((advantage < 0).sum()), mix.min_negatives, "below"),
    ]


def _enough(key: str, count: int, least: int, side: str) -> Check:
    message = f"{count} rows of the mix have an advantage {side} 0; mix.{key} wants {least}"
    if count < least:
        message += (
            f" or more: change mix.steps, the baseline or rewards.values, or set mix.{key}: "
            f"{count} to train on such a mix"
        )
    return Check(key, count >= least, message, {"count": count, "least": least})


def _mix_table(
    rows: pl.DataFrame, solutions: pl.LazyFrame, baseline: float, iteration: int
) -> pl.DataFrame:
    """The kept rows, sorted, with advantages, tokens and behaviour log-probs."""
    carried = ["prompt_token_ids", "token_ids", "logprobs", "logprob"]
    kept = solutions.select(*KEY, *carried).join(rows.lazy().select(KEY), on=KEY, how="semi")
    frame = rows.join(
        kept.collect(engine="streaming"), on=KEY, how="left", maintain_order="left"
    ).with_columns(iteration=pl.lit(iteration), advantage=pl.col("reward") - baseline)
    return tables.MIX.conform(frame)


def _label(step: MixStep) -> str:
    said = step.model_dump(exclude={"strategy"}, exclude_none=True)
    return " ".join([step.strategy, *(f"{key}={value}" for key, value in said.items())])


def _nothing_left(waterfall: list[tuple[str, int]], iteration: int) -> ToprError:
    flow = " -> ".join(f"{name}: {rows}" for name, rows in waterfall)
    return ToprError(
        f"the mix of iteration {iteration} has no rows ({flow}); rewards need values other than "
        "null (rewards.values; unverifiable solutions have none) and mix.steps must keep some"
    )
