"""What some objectives need of all the samples of a prompt, before a mix is cut into forwards."""

import polars as pl

from topr_pipeline.errors import ToprError


def unchanged(mix: pl.DataFrame) -> pl.DataFrame:
    """The mix as it is."""
    return mix


def advantages_normalized(mix: pl.DataFrame) -> pl.DataFrame:
    """GRPO's advantage: (R - mean) / std over the prompt's rows in the mix.

    std as of a sample (n - 1). 0 where all rewards of a prompt are equal, or it has one row. The
    mix's own advantage, and with it the baseline, is not read.
    """
    reward = pl.col("reward")
    spread = reward.std().over("prompt_id")
    normalized = (reward - reward.mean().over("prompt_id")) / spread
    return mix.with_columns(advantage=pl.when(spread > 0).then(normalized).otherwise(0.0))


def wins_paired(mix: pl.DataFrame) -> pl.DataFrame:
    """DPO's pairs: a prompt's first row of advantage > 0 with its first of < 0, and so on.

    First means first in the mix. Rows without a mate are dropped; the two of a pair share a `unit`.
    Raises ToprError when no prompt has both signs.
    """
    side = pl.col("advantage").sign()
    signed = mix.filter(side != 0).with_columns(turn=pl.int_range(pl.len()).over("prompt_id", side))
    pairs = (
        signed.filter(pl.col("advantage") > 0)
        .select("prompt_id", "turn")
        .join(
            signed.filter(pl.col("advantage") < 0).select("prompt_id", "turn"),
            on=["prompt_id", "turn"],
            maintain_order="left",
        )
        .with_row_index("unit")
    )
    if pairs.is_empty():
        raise ToprError(
            "mix: no prompt has both a row of advantage > 0 and one of < 0, so there is no pair to "
            "prefer one of; training.objective dpo; keep both in mix.steps, or use topr"
        )
    return (
        signed.join(pairs, on=["prompt_id", "turn"], maintain_order="left")
        .drop("turn")
        .with_columns(pl.col("unit").cast(pl.Int64))
    )
