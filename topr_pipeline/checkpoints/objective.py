"""TOPR's objective: the general tapered gradient with four bounds.

Paper (arXiv 2503.14286), section 3, with mu the behaviour policy that sampled tau:

    grad J = sum_{A>=0} mu(tau) [pi(tau)/mu(tau)]_{a+}^{b+} A(tau) grad log pi(tau)
           + sum_{A<0}  mu(tau) [pi(tau)/mu(tau)]_{a-}^{b-} A(tau) grad log pi(tau)

    [x]_a^b = min(max(x, a), b),   A = R - c,   log pi(tau) = sum_t log pi(y_t | x, y_<t)

The ratio is that of whole sequences: not per token and not length-normalised. The paper splits by
the sign of the reward and says that with a baseline c the reward is R - c; so the split here is by
the sign of A, of what is trained on. Samples stand for the sum over mu, so the surrogate is

    loss = -mean_B( stop_gradient([pi/mu]_a^b) * A * log pi / length )
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from topr_pipeline.experiment import Bounds, ObjectiveName

PRESETS: Mapping[ObjectiveName, Bounds] = {
    "topr": Bounds(positive=(1, 1), negative=(0, 1)),
    "positives": Bounds(positive=(1, 1), negative=(0, 0)),
    "reinforce": Bounds(positive=(1, 1), negative=(1, 1)),
    "importance_sampling": Bounds(positive=(0, math.inf), negative=(0, math.inf)),
    "tis": Bounds(positive=(0, 1), negative=(0, 1)),
}

MAX_LOG_WEIGHT = 30.0
"""Weights saturate at e^30, about 1e13, also under an upper bound of infinity: squared in the
gradient's norm they still fit fp32, and a larger importance weight carries no information."""


class Loss(NamedTuple):
    """The scalar to minimise, and per sample what it was made of (detached, fp32)."""

    loss: Tensor
    weight_B: Tensor
    log_ratio_B: Tensor


def bounds_of(objective: ObjectiveName | Bounds) -> Bounds:
    """The four bounds of a preset, or the bounds given."""
    return objective if isinstance(objective, Bounds) else PRESETS[objective]


def reads_behaviour(bounds: Bounds) -> bool:
    """Whether any weight depends on pi/mu: with a = b it is that constant."""
    return any(low != high for low, high in (bounds.positive, bounds.negative))


def tapered_loss(
    logprob_B: Tensor,
    behaviour_logprob_B: Tensor,
    advantage_B: Tensor,
    length_B: Tensor,
    bounds: Bounds,
) -> Loss:
    """The surrogate loss whose gradient is that of the module's docstring, as a mean over B.

    Args:
        logprob_B: log pi of each whole completion, in nats; the gradient flows through it alone.
        behaviour_logprob_B: log mu of the same; may be NaN where the bounds do not read it.
        advantage_B: R - c.
        length_B: completion tokens.
        bounds: [a, b] for advantage >= 0 and for advantage < 0.
    """
    logprob_B, advantage_B = logprob_B.float(), advantage_B.float()
    log_ratio_B = logprob_B.detach() - behaviour_logprob_B.float()
    weight_B = torch.where(
        advantage_B >= 0,
        _tapered(log_ratio_B, *bounds.positive),
        _tapered(log_ratio_B, *bounds.negative),
    )
    coefficient_B = weight_B * advantage_B / length_B
    # Without the `where`, a dropped sample of log pi = -inf would turn the loss into NaN.
    terms_B = torch.where(coefficient_B == 0, 0.0, coefficient_B * logprob_B)
    return Loss(-terms_B.mean(), weight_B, log_ratio_B)


def _tapered(log_ratio_B: Tensor, low: float, high: float) -> Tensor:
    """[exp(log_ratio)]_low^high, clamped before the exponential so that nothing overflows."""
    if low == high:
        return torch.full_like(log_ratio_B, low)
    log_low, log_high = (math.log(x) if x > 0 else -math.inf for x in (low, high))
    return log_ratio_B.clamp(log_low, min(log_high, MAX_LOG_WEIGHT)).exp()
