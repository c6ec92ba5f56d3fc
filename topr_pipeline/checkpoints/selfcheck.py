"""What is verified before a weight changes: the mix, and that its log mu are the policy's own."""

import numpy as np
import polars as pl

from topr_pipeline.errors import ToprError

_KEY = ("iteration", "prompt_id", "sample_index")


def check_mix(mix: pl.DataFrame, reads_behaviour: bool) -> None:
    """Raise ToprError naming the first row that cannot be trained on, or an empty mix.

    Behaviour log-probs may be missing only where the objective does not read them.
    """
    if mix.is_empty():
        raise ToprError("mix: no rows to train on; the curation steps or the rewards left nothing")
    logprobs, tokens = pl.col("logprobs"), pl.col("token_ids").list.len()
    refused: list[tuple[pl.Expr, str, str]] = [
        (~pl.col("advantage").is_finite(), "advantage", "a finite R - c"),
        (pl.col("prompt_token_ids").list.len() < 1, "prompt_token_ids", "one token or more"),
        (tokens < 1, "token_ids", "one token or more"),
    ]
    if reads_behaviour:
        finite = logprobs.list.eval(pl.element().is_finite().fill_null(False)).list.all()
        refused += [
            (logprobs.list.len() != tokens, "logprobs", "one log-prob per token of token_ids"),
            (~finite, "logprobs", "finite numbers: no null, NaN or -inf"),
        ]
    for bad, column, accepted in refused:
        # Null compares to null: a missing value is refused like a wrong one.
        rows = mix.filter(bad.fill_null(True))
        if rows.height:
            row = rows.row(0, named=True)
            where = ", ".join(f"{name} {row[name]}" for name in _KEY)
            raise ToprError(
                f"mix: {column} {_short(row[column])} at {where} ({rows.height} such rows); "
                f"accepted: {accepted}"
            )


def check_start(log_ratio_B: pl.Series, limits: tuple[float, float]) -> float | None:
    """Mean of min(pi/mu, 1) of the first batch before any step; None without any sample.

    `log_ratio_B` is log pi/mu of samples of the newest iteration: pi is the policy that these came
    from, so each is 0 but for rounding (older samples came from other policies and say nothing).
    The mean sees only mu that are too large, so the mean of min(mu/pi, 1) is looked at as well.
    Raises ToprError when the first is below the lower limit, or 1 / the second above the upper.
    """
    if log_ratio_B.is_empty():
        return None
    ratio, inverse = (
        float(np.exp(np.minimum(signed, 0)).mean())
        for signed in (log_ratio_B.to_numpy(), -log_ratio_B.to_numpy())
    )
    low, high = limits
    if not (ratio >= low and inverse * high >= 1):
        raise ToprError(
            f"mean clipped ratio {ratio:.4f} (of the inverse: {inverse:.4f}) on the first batch, "
            "before any step: the stored log mu are not the starting policy's. Likely causes: "
            "log-probs taken after temperature, top-k or top-p (they must be raw, at T=1); another "
            "chat template or tokenizer, so other prompt tokens; another dtype in the sampler than "
            "in training.dtype; solutions sampled from another policy than the one trained. "
            f"Accepted (training.ratio_limits): {low} or more, of the inverse 1/{high} or more"
        )
    return ratio


def _short(value: object) -> str:
    said = str(value)
    return said if len(said) <= 60 else f"{said[:60]}..."
