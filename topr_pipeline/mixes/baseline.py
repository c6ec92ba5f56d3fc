"""The baseline c and the effective share of positives that it gives (arXiv 2503.14286).

Training on R - c instead of R scales positives and negatives differently. The effective share of
positives is their part of the whole mass of advantages, sum_{R>c} (R - c) / sum |R - c|.
"""

import math
from collections.abc import Mapping
from itertools import pairwise

from topr_pipeline.errors import ToprError

_BASELINE, _TARGET = "mix.baseline", "mix.effective_positive_share"


def effective_share(p: float, c: float) -> float:
    """p~ = p(1-c) / (1 + c(1-2p)) for rewards of +1 (a share p of them) and -1.

    p~(0) = p, p~(-1) = 1 (negatives are discarded), p~(1) = 0. Raises ToprError where every
    advantage is 0: p = 0 with c = -1, p = 1 with c = 1.
    """
    mass = 1 + c * (1 - 2 * p)
    if mass <= 0:
        raise _no_advantage(c)
    return p * (1 - c) / mass


def baseline_for(p: float, target: float) -> float:
    """c = (p-t) / (p + t(1-2p)), the baseline with effective share t for rewards of +1 and -1.

    Raises ToprError for p = 0 and p = 1, whose effective share no baseline changes, and for a
    target outside [0, 1].
    """
    if not 0 < p < 1:
        raise ToprError(
            f"{_TARGET}: {target:g} cannot be reached: the share of positives is {p:g} whatever "
            "the baseline; a mix with both positive and negative rewards is needed"
        )
    _check_target(target)
    return (p - target) / (p + target * (1 - 2 * p))


def effective_share_of_rewards(rows: Mapping[float, float], c: float) -> float:
    """`effective_share` for any rewards; `rows` counts the rows (or says their share) per reward.

    >>> effective_share_of_rewards({1.0: 1, 0.0: 1, -1.0: 2}, 0.5)  # 0.5 of 0.5 + 0.5 + 3
    0.125
    """
    above = math.fsum(n * (reward - c) for reward, n in rows.items() if reward > c)
    below = math.fsum(n * (c - reward) for reward, n in rows.items() if reward < c)
    if above + below == 0:
        raise _no_advantage(c)
    return above / (above + below)


def baseline_for_rewards(rows: Mapping[float, float], target: float) -> float:
    """`baseline_for` for any rewards: the c between the least and the largest of them.

    The effective share falls from 1 to 0 between the two. Between two neighbouring rewards, with n+
    rows of sum S+ above and n- of sum S- below, (1-t)(S+ - n+ c) = t (n- c - S-) is solved for c.
    Raises ToprError for fewer than two different rewards and for a target outside [0, 1].
    """
    values = sorted(reward for reward, n in rows.items() if n > 0)
    if len(values) < 2:
        raise ToprError(
            f"{_TARGET}: {target:g} cannot be reached: the rewards of the mix are all "
            f"{', '.join(f'{v:g}' for v in values)}, so every advantage has one sign; "
            "a mix with both positive and negative rewards is needed (see mix.steps)"
        )
    _check_target(target)
    low = next(
        low
        for low, high in pairwise(values)
        if high == values[-1] or effective_share_of_rewards(rows, high) <= target
    )
    t = target
    weight = {reward: n * (t if reward <= low else 1 - t) for reward, n in rows.items()}
    return math.fsum(w * r for r, w in weight.items()) / math.fsum(weight.values())


def _check_target(target: float) -> None:
    if not 0 <= target <= 1:
        raise ToprError(f"{_TARGET}: {target:g} is no share; from 0 to 1 is accepted")


def _no_advantage(c: float) -> ToprError:
    return ToprError(
        f"{_BASELINE}: {c:g} equals every reward of the mix, so all advantages R - c are 0 and "
        "nothing would be learnt; choose another baseline, or a mix with different rewards"
    )
