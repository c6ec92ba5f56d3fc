"""Whether stored log-probs are those that training will compute: the premise of pi/mu."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

TOKENS = 8192
"""Tokens in a forward pass, padding included."""

Scorer = Callable[[pl.DataFrame], list[list[float]]]
"""From prompt_token_ids and token_ids to log pi per token, row by row."""


@dataclass(frozen=True)
class Agreement:
    """How far a sampler's log mu are from the policy's own log pi, over `sequences` samples.

    Differences are absolute, in nats, per token. `mean_clipped_ratio` is the mean over sequences of
    min(pi/mu, 1), `inverse_ratio` that of min(mu/pi, 1): the first falls when the stored log mu are
    too large, the second when they are too small. Without sequences, differences are 0, ratios 1.
    """

    sequences: int
    max_difference: float
    mean_difference: float
    mean_clipped_ratio: float
    inverse_ratio: float

    def within(self, limits: tuple[float, float]) -> bool:
        """Whether the ratio is at least `limits[0]`, and the inverse at least 1 / `limits[1]`."""
        return self.mean_clipped_ratio >= limits[0] and self.inverse_ratio * limits[1] >= 1


def agreement(solutions: pl.LazyFrame, policy: Path, sequences: int = 64) -> Agreement:
    """Compare stored log-probs with a plain forward pass of the trainer's, in fp32.

    `solutions` is a solutions table, `policy` the folder that it was sampled from. At most
    `sequences` rows are compared, evenly spread over the table. On the accelerator where there is
    one. Raises ToprError for a policy that does not load.
    """
    rows = _spread(solutions, sequences)
    if rows.is_empty():
        return Agreement(0, 0.0, 0.0, 1.0, 1.0)
    own = scorer(policy)(rows)
    differences = [
        np.asarray(pi_R, np.float64) - np.asarray(mu_R, np.float64)
        for pi_R, mu_R in zip(own, rows["logprobs"].to_list(), strict=True)
    ]
    off_T = np.abs(np.concatenate(differences))
    log_ratio_B = np.array([d.sum() for d in differences])
    return Agreement(
        sequences=rows.height,
        max_difference=float(off_T.max()),
        mean_difference=float(off_T.mean()),
        mean_clipped_ratio=float(np.exp(np.minimum(log_ratio_B, 0)).mean()),
        inverse_ratio=float(np.exp(np.minimum(-log_ratio_B, 0)).mean()),
    )


def _spread(solutions: pl.LazyFrame, sequences: int) -> pl.DataFrame:
    columns = solutions.select("prompt_token_ids", "token_ids", "logprobs")
    total = int(columns.select(pl.len()).collect().item())
    chosen = np.unique(np.linspace(0, total - 1, min(sequences, total), dtype=np.int64))
    return columns.with_row_index("row").filter(pl.col("row").is_in(chosen.tolist())).collect()


def scorer(policy: Path) -> Scorer:
    """Load the policy in fp32, on the accelerator where there is one, to score completions.

    Raises ToprError for a policy that does not load.
    """
    import torch

    from topr_pipeline.checkpoints.folders import load

    model, _ = load(policy, "float32")
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    model = model.to(device).eval()  # pyrefly: ignore
    return lambda rows: _own_logprobs(rows, model)


def _own_logprobs(rows: pl.DataFrame, model: Any) -> list[list[float]]:
    """log pi per token, row by row; rows of like length share a forward pass."""
    import torch

    from topr_pipeline.checkpoints.logprobs import completion_logprobs

    length_B = rows.select(
        pl.col("prompt_token_ids").list.len() + pl.col("token_ids").list.len()
    ).to_series()
    own: list[list[float]] = [[] for _ in range(rows.height)]
    for batch in _batches(length_B.to_list()):
        some = rows[batch]
        completions = some["token_ids"].to_list()
        with torch.inference_mode():
            logprobs_BT = completion_logprobs(
                model, some["prompt_token_ids"].to_list(), completions
            ).logprobs_BT
        for row, tokens, logprobs in zip(batch, completions, logprobs_BT.tolist(), strict=True):
            own[row] = logprobs[: len(tokens)]
    return own


def _batches(lengths: list[int]) -> list[list[int]]:
    """Row numbers, shortest first, in batches of at most `TOKENS` tokens (one row at least)."""
    batches: list[list[int]] = [[]]
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batches[-1] and (len(batches[-1]) + 1) * lengths[row] > TOKENS:
            batches.append([])
        batches[-1].append(row)
    return batches
