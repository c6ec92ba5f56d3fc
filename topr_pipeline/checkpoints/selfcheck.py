"""What is verified before a weight changes: the mix, and that its log mu are the policy's own."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Training
from topr_pipeline.tables import LOGPROBS

_KEY = ("iteration", "prompt_id", "sample_index")


def check_mix(mix: pl.DataFrame, reads_behaviour: bool, max_missing: float) -> None:
    """Raise ToprError naming the first row that cannot be trained on, or an empty mix.

    Where the objective reads log mu, it may be missing (none, NaN or infinite, or as many as there
    are no tokens) for the share `max_missing` of completion tokens; these count as ratio 1.
    """
    if mix.is_empty():
        raise ToprError("mix: no rows to train on; the curation steps or the rewards left nothing")
    refused: list[tuple[pl.Expr, str, str]] = [
        (~pl.col("advantage").is_finite(), "advantage", "a finite R - c"),
        (pl.col("prompt_token_ids").list.len() < 1, "prompt_token_ids", "one token or more"),
        (pl.col("token_ids").list.len() < 1, "token_ids", "one token or more"),
    ]
    for bad, column, accepted in refused:
        # Null compares to null: a missing value is refused like a wrong one.
        rows = mix.filter(bad.fill_null(True))
        if rows.height:
            row = rows.row(0, named=True)
            raise ToprError(
                f"mix: {column} {_short(row[column])} at {_where(row)} ({rows.height} such rows); "
                f"accepted: {accepted}"
            )
    if reads_behaviour:
        _check_missing(mix, max_missing)


def prepared(
    prepare: Callable[[pl.DataFrame], pl.DataFrame], mix: pl.DataFrame, training: Training
) -> pl.DataFrame:
    """The mix as the objective prepares it (`Objective.prepare`).

    Raises ToprError for one that cannot be trained on: no table, without a column of the mix,
    without rows, with a row that `check_mix` refuses, or without any advantage that is not 0.
    """
    found = prepare(mix)
    named = f"training.objective {training.objective}: its `prepare`"
    accepted = "accepted: the mix's columns, finite advantages, some not 0"
    if not isinstance(found, pl.DataFrame):
        raise ToprError(f"{named} returned a {type(found).__name__}; {accepted}")
    if missing := [name for name in mix.columns if name not in found.columns]:
        raise ToprError(f"{named} dropped the columns {missing}; {accepted}")
    if found.is_empty():
        raise ToprError(f"{named} left no row of {mix.height}; {accepted}")
    try:
        check_mix(found, reads_behaviour=False, max_missing=1.0)
    except ToprError as error:
        raise ToprError(f"{named} left what cannot be trained on: {error}") from error
    if mix["advantage"].ne(0).any() and not found["advantage"].ne(0).any():
        raise ToprError(
            f"{named} left advantages of 0 alone, so there is nothing to learn; {accepted}. grpo "
            "wants prompts of which some samples are right and others wrong: keep both in mix.steps"
        )
    return found


def _check_missing(mix: pl.DataFrame, max_missing: float) -> None:
    logprobs, tokens = pl.col("logprobs"), pl.col("token_ids").list.len().cast(pl.Int64)
    known = logprobs.list.eval(pl.element().is_finite().fill_null(False)).list.sum()
    whole = logprobs.list.len() == tokens
    counted = mix.with_columns(
        missing=tokens - pl.when(whole).then(known.cast(pl.Int64)).otherwise(0).fill_null(0),
        tokens=tokens,
    ).filter(pl.col("tokens") > 0)
    missing, total = (int(counted[name].sum()) for name in ("missing", "tokens"))
    if not missing:
        return
    rows = counted.filter(pl.col("missing") > 0)
    said = (
        f"mix: {missing} of {total} completion tokens ({missing / total:.2%}) have no log-prob of "
        f"the behaviour policy, in {rows.height} rows, first at {_where(rows.row(0, named=True))}: "
        f"logprobs {_short(rows['logprobs'].to_list()[0])}"
    )
    if missing / total > max_missing:
        raise ToprError(
            f"{said}; accepted: finite numbers, one per token of token_ids, but for the share "
            f"training.max_missing_logprobs ({max_missing:g})"
        )
    logging.getLogger(__name__).warning("%s; their ratio counts as 1", said)


def check_start(samples: pl.DataFrame, limits: tuple[float, float] | None) -> float | None:
    """Mean of min(pi/mu, 1) of the first batch before any step; None without any sample.

    `samples` has `log_ratio`, log pi/mu, and `length`, of samples of the newest iteration: pi is
    the policy that these came from, so each ratio is 1 but for rounding (older samples came from
    other policies and say nothing). The mean sees only mu that are too large, so the mean of
    min(mu/pi, 1) is looked at as well. Raises ToprError when the first is below the lower limit, or
    1 / the second above the upper. Without `limits` the samples are of another policy: no check.
    """
    if samples.is_empty():
        return None
    log_ratio_B = samples["log_ratio"].to_numpy()
    ratio, inverse = (
        float(np.exp(np.minimum(signed, 0)).mean()) for signed in (log_ratio_B, -log_ratio_B)
    )
    if limits is None:
        return ratio
    low, high = limits
    if not (ratio >= low and inverse * high >= 1):
        likely, *others = _causes(log_ratio_B / samples["length"].to_numpy())
        raise ToprError(
            f"mean clipped ratio {ratio:.4f} (of the inverse: {inverse:.4f}) on the first batch, "
            "before any step: the stored log mu are not the starting policy's. Most likely: "
            f"{likely}; else: {'; '.join(others)}. Accepted (training.ratio_limits): {low} or "
            f"more, of the inverse 1/{high} or more. training.recompute_behaviour: true takes log "
            "mu from the starting policy instead"
        )
    return ratio


def _causes(per_token_B: np.ndarray) -> list[str]:
    """Why log pi/mu per token is not 0, the likeliest first."""
    processed = (
        "log-probs taken after temperature, top-k or top-p (they must be raw, at T=1; what is "
        "renormalised over fewer tokens is too large throughout, a temperature above 1 too small)"
    )
    other = (
        "another chat template or tokenizer, so other prompt tokens, or another policy than the "
        "one that the solutions were sampled from"
    )
    dtype = "another dtype in the sampler (sampling.dtype) than in training.dtype"
    if np.abs(per_token_B).mean() > FAR:
        return [other, processed, dtype]
    if max((per_token_B < 0).mean(), (per_token_B > 0).mean()) > ONE_SIDED:
        return [processed, other, dtype]
    return [dtype, processed, other]


FAR, ONE_SIDED = 0.5, 0.9
"""Nats per token beyond which it is not the same text, and the share of samples that are off in one
direction beyond which it is not rounding."""


def recomputed(
    mix: pl.DataFrame, policy: Any, logprobs_of: Any, training: Training
) -> pl.DataFrame:
    """`mix` with log mu of the newest iteration's samples as `policy` has them.

    Older samples came from other policies and keep theirs. As in training: same forwards, dtype
    and processes. Arguments as the trainer has them: a model on its device, a GroupLogprobs.
    """
    import torch

    from topr_pipeline.checkpoints.batches import forwards, samples_of
    from topr_pipeline.checkpoints.processes import everyones, rank, world

    autocast = torch.autocast(
        policy.device.type, torch.bfloat16, enabled=training.dtype == "bfloat16"
    )
    fresh = pl.col("iteration") == pl.col("iteration").max()
    own: dict[tuple[str, int], list[float]] = {}
    policy.eval()
    for some in mix.filter(fresh).iter_slices(CHUNK):
        batch, tokens = samples_of(some), training.tokens_per_forward
        with torch.no_grad(), autocast:
            logprobs_of.verify(policy, forwards(batch, tokens)[0])
        cut = forwards(batch, tokens, shares_prefix=logprobs_of.shares(policy, batch))
        for groups in cut[rank() :: world()]:
            with torch.no_grad(), autocast:
                rows = logprobs_of(policy, groups).logprobs_BT.tolist()
            samples = [s for group in groups for s in group.samples]
            for s, row in zip(samples, rows, strict=True):
                own[s.prompt_id, s.sample_index] = row[: len(s.token_ids)]
    own = {key: row for theirs in everyones(own) for key, row in theirs.items()}
    keys = mix.filter(fresh).select("iteration", "prompt_id", "sample_index")
    found = [own[prompt_id, i] for _, prompt_id, i in keys.iter_rows()]
    new = keys.with_columns(new=pl.Series(found, dtype=LOGPROBS))
    joined = mix.join(new, on=keys.columns, how="left", maintain_order="left")
    return joined.with_columns(
        logprobs=pl.coalesce("new", "logprobs"),
        logprob=pl.coalesce(pl.col("new").cast(pl.List(pl.Float64)).list.sum(), "logprob"),
    ).drop("new")


CHUNK = 2048
"""Rows of the mix whose log mu are recomputed at a time."""


def _where(row: dict[str, Any]) -> str:
    return ", ".join(f"{name} {row[name]}" for name in _KEY)


def _short(value: object) -> str:
    said = str(value)
    return said if len(said) <= 60 else f"{said[:60]}..."
