"""What is recorded of a step: a row of `training_log` out of the facts of its samples."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from topr_pipeline.checkpoints.batches import Group
from topr_pipeline.checkpoints.logprobs import CompletionLogprobs
from topr_pipeline.checkpoints.objective import Loss

VANISHED = 0.05
"""Below this weight a negative sample counts as vanished in the log."""


def facts(groups: Sequence[Group], logprobs: CompletionLogprobs, loss: Loss) -> pl.DataFrame:
    """One row per sample of a forward.

    `computed` are its share of the tokens that were computed: a group's prompt counts for the first
    of its samples alone. `log_ratio` is null where no log mu is known.
    """
    samples = [s for group in groups for s in group.samples]
    firsts = [i == 0 for group in groups for i, _ in enumerate(group.samples)]
    known = [bool(np.isfinite(s.logprobs_R).any()) for s in samples]
    entropy_B = (logprobs.entropy_BT * logprobs.mask_BT).sum(1)
    columns = {"loss": loss.loss_B, "weight": loss.weight_B, "log_ratio": loss.log_ratio_B}
    numbers = {k: v.detach().double().cpu().numpy() for k, v in columns.items()}
    return pl.DataFrame(
        {
            "prompt_id": [s.prompt_id for s in samples],
            "sample_index": [s.sample_index for s in samples],
            "iteration": [s.iteration for s in samples],
            "advantage": [s.advantage for s in samples],
            "length": [len(s.token_ids) for s in samples],
            "tokens": [s.tokens for s in samples],
            "computed": [
                s.tokens if first else len(s.token_ids)
                for s, first in zip(samples, firsts, strict=True)
            ],
            "entropy": entropy_B.double().cpu().numpy(),
            **numbers,
            "known": known,
        }
    ).with_columns(log_ratio=pl.when("known").then("log_ratio"))


def figures(samples: pl.DataFrame) -> dict[str, float | None]:
    """The columns of `training_log` that sum up the samples of a step; entropy is per token."""
    positive = pl.col("advantage") >= 0
    negative = ~positive
    return samples.select(
        positives=positive.sum(),
        negatives=negative.sum(),
        weight_positive=pl.col("weight").filter(positive).mean(),
        weight_negative=pl.col("weight").filter(negative).mean(),
        vanished_negative=(pl.col("weight").filter(negative) < VANISHED).mean(),
        log_ratio_positive=pl.col("log_ratio").filter(positive).mean(),
        log_ratio_negative=pl.col("log_ratio").filter(negative).mean(),
        entropy=pl.col("entropy").sum() / pl.col("length").sum(),
        tokens=pl.col("tokens").sum(),
        computed_tokens=pl.col("computed").sum(),
    ).row(0, named=True)


def named(samples: pl.DataFrame, most: int = 64) -> str:
    """`(prompt_id, sample_index)` of the samples, for an error message."""
    keys = sorted(samples.select("prompt_id", "sample_index").rows())
    rest = f" and {len(keys) - most} more" if len(keys) > most else ""
    return ", ".join(f"({prompt_id}, {i})" for prompt_id, i in keys[:most]) + rest
