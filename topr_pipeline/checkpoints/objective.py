"""What is maximised: TOPR's tapered gradient with four bounds, and PPO, GRPO and DPO to compare.

Paper (arXiv 2503.14286), section 3, with mu the behaviour policy that sampled tau:

    grad J = sum_{A>=0} mu(tau) [pi(tau)/mu(tau)]_{a+}^{b+} A(tau) grad log pi(tau)
           + sum_{A<0}  mu(tau) [pi(tau)/mu(tau)]_{a-}^{b-} A(tau) grad log pi(tau)

    [x]_a^b = min(max(x, a), b),   A = R - c,   log pi(tau) = sum_t log pi(y_t | x, y_<t)

The ratio is that of whole sequences: not per token and not length-normalised. The paper splits by
the sign of the reward and says that with a baseline c the reward is R - c; so the split here is by
the sign of A, of what is trained on. Samples stand for the sum over mu, so that a sample's loss is

    loss = -stop_gradient([pi/mu]_a^b) * A * log pi / length

and the loss of a step is the mean of these over its samples, whatever forwards they were cut into.
"""

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import polars as pl
import torch
from torch import Tensor

from topr_pipeline.checkpoints.within_prompt import advantages_normalized, unchanged, wins_paired
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Bounds, Clipped, Preference

PRESETS: Mapping[str, Bounds] = {
    "topr": Bounds(positive=(1, 1), negative=(0, 1)),
    "positives": Bounds(positive=(1, 1), negative=(0, 0)),
    "reinforce": Bounds(positive=(1, 1), negative=(1, 1)),
    "importance_sampling": Bounds(positive=(0, math.inf), negative=(0, math.inf)),
    "tis": Bounds(positive=(0, 1), negative=(0, 1)),
}

MAX_LOG_WEIGHT = 30.0
"""Weights saturate at e^30, about 1e13, also under an upper bound of infinity: squared in the
gradient's norm they still fit fp32, and a larger importance weight carries no information."""


class ObjectiveInput(NamedTuple):
    """B samples of one forward. The gradient flows through `logprobs_BT` alone.

    Nothing in it depends on which other samples share the forward, but for the width T (the longest
    completion) and this: samples of one `unit`, such as the two of a DPO pair, are never separated.

    Attributes:
        logprobs_BT: log pi per completion token, fp32, in nats; 0 past a row's end.
        behaviour_logprobs_BT: log mu of the same tokens; where it is missing (none, NaN or
            infinite), log pi itself, detached, so that the token's ratio is 1.
        mask_BT: which entries are tokens.
        advantage_B: what is trained on: R - c, or as the objective prepared it.
        reward_B: R.
        unit_B: equal numbers mark samples that belong together.
    """

    logprobs_BT: Tensor
    behaviour_logprobs_BT: Tensor
    mask_BT: Tensor
    advantage_B: Tensor
    reward_B: Tensor
    unit_B: Tensor

    @property
    def length_B(self) -> Tensor:
        """Completion tokens, EOS among them where it was generated."""
        return self.mask_BT.sum(1)

    @property
    def log_ratio_BT(self) -> Tensor:
        """log pi/mu per token, with gradient; 0 past a row's end. Its sum is the sequence's."""
        return self.logprobs_BT - self.behaviour_logprobs_BT


class Loss(NamedTuple):
    """Per sample: the loss, and what it was made of (detached, fp32).

    `loss_B` is summed over the samples of a step and divided by their number. `weight_B` is what
    A * grad log pi / length is multiplied with, the mean over tokens where each has its own.
    """

    loss_B: Tensor
    weight_B: Tensor
    log_ratio_B: Tensor


@dataclass(frozen=True)
class Objective:
    """A loss, and what it needs of a mix before that is cut into forwards.

    `prepare` may change `advantage`, drop rows, and add an integer column `unit` that says which
    rows stay together. `reads_behaviour` is whether log mu matters at all.
    """

    loss: Callable[[ObjectiveInput], Loss]
    reads_behaviour: bool = True
    prepare: Callable[[pl.DataFrame], pl.DataFrame] = unchanged


def make_objective(chosen: str | Bounds | Clipped | Preference) -> Objective:
    """The objective of `training.objective`.

    A user's own, `python: package.module:name`, is a function from ObjectiveInput to Loss, or an
    Objective. Raises ToprError when it does not import or is neither.
    """
    match chosen:
        case "ppo":
            return make_objective(Clipped(name="ppo"))
        case "grpo":
            return make_objective(Clipped(name="grpo"))
        case "dpo":
            return make_objective(Preference(name="dpo"))
        case Clipped(name="ppo"):
            return Objective(partial(ppo, epsilon=chosen.epsilon))
        case Clipped():
            return Objective(partial(grpo, epsilon=chosen.epsilon), prepare=advantages_normalized)
        case Preference():
            return Objective(partial(dpo, beta=chosen.beta), prepare=wins_paired)
        case Bounds():
            constant = all(low == high for low, high in (chosen.positive, chosen.negative))
            return Objective(partial(tapered, bounds=chosen), reads_behaviour=not constant)
        case _ if chosen in PRESETS:
            return make_objective(PRESETS[chosen])
    return _users(chosen)


def tapered(x: ObjectiveInput, bounds: Bounds) -> Loss:
    """The general tapered objective: [a, b] on pi/mu for A >= 0 and for A < 0 (paper, eq. 8)."""
    log_ratio_B = x.log_ratio_BT.detach().sum(1)
    if bounds.length_normalized:
        log_ratio_B = log_ratio_B / x.length_B
    weight_B = torch.where(
        x.advantage_B >= 0,
        _tapered(log_ratio_B, *bounds.positive),
        _tapered(log_ratio_B, *bounds.negative),
    )
    return _weighted(x, weight_B[:, None])


def ppo(x: ObjectiveInput, epsilon: float) -> Loss:
    """min(r A, clip(r, 1 - epsilon, 1 + epsilon) A) / length, r = pi/mu of the whole sequence.

    Its gradient is that of r A log pi / length where r is not clipped, r detached, and else none.
    """
    log_ratio_B = x.log_ratio_BT.detach().sum(1)
    return _weighted(x, _unclipped(log_ratio_B, x.advantage_B, epsilon)[:, None])


def grpo(x: ObjectiveInput, epsilon: float) -> Loss:
    """PPO's surrogate per token, r of that token alone, as a mean over tokens (arXiv 2402.03300).

    Without the KL term. The advantage is (R - mean) / std over the prompt's samples in the mix.
    """
    log_ratio_BT = x.log_ratio_BT.detach()
    return _weighted(x, _unclipped(log_ratio_BT, x.advantage_B[:, None], epsilon))


def dpo(x: ObjectiveInput, beta: float) -> Loss:
    """-log sigmoid(beta (log pi/mu of the better - log pi/mu of the worse)), arXiv 2305.18290.

    The reference policy is mu. Both samples of a pair carry its loss, so that the mean over samples
    is that over pairs; it is not divided by lengths. The weight is 1 - sigmoid(...).
    """
    log_ratio_B = x.log_ratio_BT.sum(1)
    mate_B = _mates(x.unit_B)
    sign_B = torch.where(x.advantage_B >= 0, 1.0, -1.0)
    margin_B = beta * sign_B * (log_ratio_B - log_ratio_B[mate_B])
    loss_B = -torch.nn.functional.logsigmoid(margin_B)
    return Loss(loss_B, torch.sigmoid(-margin_B).detach(), log_ratio_B.detach())


def _weighted(x: ObjectiveInput, weight_BT: Tensor) -> Loss:
    """-weight * A * log pi / length, summed over tokens; `weight_BT` may be [B, 1]."""
    coefficient_BT = weight_BT * (x.advantage_B / x.length_B)[:, None]
    # Without the `where`, a dropped sample of log pi = -inf would turn the loss into NaN.
    terms_BT = torch.where((coefficient_BT == 0) | ~x.mask_BT, 0.0, coefficient_BT * x.logprobs_BT)
    weight_B = (weight_BT * x.mask_BT).sum(1) / x.length_B
    return Loss(-terms_BT.sum(1), weight_B, x.log_ratio_BT.detach().sum(1))


def _tapered(log_ratio: Tensor, low: float, high: float) -> Tensor:
    """[exp(log_ratio)]_low^high, clamped before the exponential so that nothing overflows."""
    if low == high:
        return torch.full_like(log_ratio, low)
    log_low, log_high = (math.log(x) if x > 0 else -math.inf for x in (low, high))
    return log_ratio.clamp(log_low, min(log_high, MAX_LOG_WEIGHT)).exp()


def _unclipped(log_ratio: Tensor, advantage: Tensor, epsilon: float) -> Tensor:
    """exp(log_ratio), and 0 where moving on in the advantage's direction would gain nothing."""
    beyond = torch.where(
        advantage >= 0,
        log_ratio > math.log1p(epsilon),
        log_ratio < math.log1p(-epsilon),
    )
    return torch.where(beyond, 0.0, _tapered(log_ratio, 0, math.inf))


def _mates(unit_B: Tensor) -> Tensor:
    """Of each sample, the index of the other one in its pair."""
    same_BB = unit_B[:, None] == unit_B[None, :]
    same_BB.fill_diagonal_(False)
    if not same_BB.sum(1).eq(1).all():
        raise ValueError(f"pairs are not whole in this forward: units {unit_B.tolist()}")
    return same_BB.int().argmax(1)


def _users(name: str) -> Objective:
    module, _, attribute = name.removeprefix("python:").strip().partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ToprError(
            f"{name!r} cannot be imported ({error}); training.objective; "
            f"accepted: {', '.join((*PRESETS, 'ppo', 'grpo', 'dpo'))}, or "
            "'python: package.module:function', importable where the run executes"
        ) from error
    objective = found if isinstance(found, Objective) else Objective(found)
    if not callable(objective.loss):
        raise ToprError(
            f"{name!r} is a {type(found).__name__}; training.objective; "
            "accepted: a function from ObjectiveInput to Loss, or an Objective"
        )
    return Objective(
        partial(_checked, name=name, loss=objective.loss),
        objective.reads_behaviour,
        objective.prepare,
    )


def _checked(x: ObjectiveInput, name: str, loss: Callable[[ObjectiveInput], Loss]) -> Loss:
    result = loss(x)
    shape = x.advantage_B.shape
    if not isinstance(result, Loss) or any(part.shape != shape for part in result):
        raise ToprError(
            f"{name!r} returned {_said(result)}; training.objective; accepted: a Loss of three "
            f"tensors of shape {tuple(shape)}, one number per sample"
        )
    return result


def _said(result: object) -> str:
    if isinstance(result, Loss):
        return f"a Loss of shapes {[tuple(part.shape) for part in result]}"
    return f"a {type(result).__name__}"
