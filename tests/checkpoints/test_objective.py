import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from topr_pipeline.checkpoints.objective import (
    PRESETS,
    Loss,
    Objective,
    ObjectiveInput,
    make_objective,
)
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Bounds, Clipped, Preference, Training
from topr_pipeline.training import OBJECTIVES

# By hand. exp(-2) = 0.135335, exp(-0.5) = 0.606531, exp(1) = 2.718282, exp(3) = 20.085537,
# exp(0.1) = 1.105171, exp(-0.1) = 0.904837. PPO clips outside [0.8, 1.2]: log 1.2 = 0.182322,
# log 0.8 = -0.223144. The last column is d(-loss) / d log pi = weight * advantage / length.
WIDE = Bounds(positive=(0.5, 2), negative=(0.25, 4))
CASES = [
    # objective, log pi/mu, advantage, length, weight, coefficient
    ("topr", 3.0, 1.0, 4, 1.0, 0.25),
    ("topr", -2.0, 1.0, 4, 1.0, 0.25),
    ("topr", 3.0, -1.0, 4, 1.0, -0.25),
    ("topr", -2.0, -1.0, 4, 0.135335, -0.03383375),
    ("topr", -0.5, -1.5, 3, 0.606531, -0.3032655),
    ("topr", -2.0, 0.0, 4, 1.0, 0.0),
    ("positives", 3.0, 1.0, 5, 1.0, 0.2),
    ("positives", 3.0, -1.0, 5, 0.0, 0.0),
    ("positives", -2.0, -1.0, 5, 0.0, 0.0),
    ("reinforce", 3.0, 0.5, 2, 1.0, 0.25),
    ("reinforce", -2.0, -1.0, 2, 1.0, -0.5),
    ("importance_sampling", 1.0, 1.0, 2, 2.718282, 1.359141),
    ("importance_sampling", 3.0, -1.0, 10, 20.085537, -2.0085537),
    ("importance_sampling", -2.0, 1.0, 1, 0.135335, 0.135335),
    ("tis", 1.0, 1.0, 2, 1.0, 0.5),
    ("tis", -2.0, 1.0, 2, 0.135335, 0.0676675),
    ("tis", -2.0, -1.0, 2, 0.135335, -0.0676675),
    ("tis", 1.0, -1.0, 2, 1.0, -0.5),
    (WIDE, 1.0, 1.0, 1, 2.0, 2.0),
    (WIDE, -2.0, 1.0, 1, 0.5, 0.5),
    (WIDE, 3.0, -1.0, 1, 4.0, -4.0),
    (WIDE, -2.0, -1.0, 1, 0.25, -0.25),
    # The fourth root of exp(-2) is exp(-0.5).
    (Bounds(length_normalized=True), -2.0, -1.0, 4, 0.606531, -0.15163275),
    ("ppo", 0.1, 1.0, 2, 1.105171, 0.5525855),
    ("ppo", 0.2, 1.0, 2, 0.0, 0.0),
    ("ppo", -2.0, 1.0, 2, 0.135335, 0.0676675),
    ("ppo", 3.0, -1.0, 2, 20.085537, -10.0427685),
    ("ppo", -0.1, -1.0, 2, 0.904837, -0.4524185),
    ("ppo", -0.3, -1.0, 2, 0.0, 0.0),
    (Clipped(name="ppo", epsilon=0.3), 0.2, 1.0, 2, 1.221403, 0.6107015),
]
CHOICES = [*PRESETS, "ppo", "grpo", WIDE]


def batch(log_ratios, advantages, logprob=-1.0, units=None) -> ObjectiveInput:
    """Rows of per-token log-ratios; each token's log pi is `logprob`."""
    width = max(map(len, log_ratios))
    mask_BT = torch.tensor([[t < len(r) for t in range(width)] for r in log_ratios])
    logprobs_BT = torch.where(mask_BT, logprob, 0.0).requires_grad_()
    ratio_BT = torch.tensor([[*r, *[0.0] * (width - len(r))] for r in log_ratios])
    advantage_B = torch.tensor(advantages)
    return ObjectiveInput(
        logprobs_BT,
        torch.where(mask_BT, logprob - ratio_BT, 0.0),
        mask_BT,
        advantage_B,
        advantage_B,
        torch.tensor(units or range(len(log_ratios))),
    )


def one(objective, log_ratio, advantage, length, logprob=-7.0):
    """Of a sample whose tokens share the log-ratio: loss, weight, d(-loss) / d log pi."""
    x = batch([[log_ratio / length] * length], [advantage], logprob / length)
    loss_B, weight_B, log_ratio_B = make_objective(objective).loss(x)
    loss_B.sum().backward()
    assert log_ratio_B.item() == pytest.approx(log_ratio, rel=1e-5)
    assert x.logprobs_BT.grad is not None
    assert x.logprobs_BT.grad.unique().numel() == 1
    return loss_B.item(), weight_B.item(), -x.logprobs_BT.grad[0, 0].item()


@pytest.mark.parametrize(
    ("objective", "log_ratio", "advantage", "length", "weight", "coefficient"), CASES
)
def test_weight_and_gradient_are_those_computed_by_hand(
    objective, log_ratio, advantage, length, weight, coefficient
):
    loss, found, gradient = one(objective, log_ratio, advantage, length)
    assert found == pytest.approx(weight, rel=1e-5)
    assert gradient == pytest.approx(coefficient, rel=1e-5)
    assert loss == pytest.approx(7.0 * coefficient, rel=1e-5)


def test_grpo_clips_each_token_by_its_own_ratio():
    # Advantage 1: 0.1 and -2 are kept with weights 1.105171 and 0.135335, 0.2 is clipped.
    x = batch([[0.1, 0.2, -2.0], [0.2, -0.3]], [1.0, -1.0])
    loss_B, weight_B, _ = make_objective("grpo").loss(x)
    loss_B.sum().backward()
    assert x.logprobs_BT.grad is not None
    torch.testing.assert_close(
        -x.logprobs_BT.grad,
        torch.tensor([[1.105171 / 3, 0.0, 0.135335 / 3], [-1.221403 / 2, 0.0, 0.0]]),
    )
    torch.testing.assert_close(weight_B, torch.tensor([1.240506 / 3, 1.221403 / 2]))


def test_dpo_is_that_computed_by_hand_and_each_of_a_pair_carries_its_loss():
    # Sequence log-ratios 1.5 (better) and -0.5 (worse): margin 0.1 * 2 = 0.2,
    # -log sigmoid(0.2) = 0.598139, sigmoid(-0.2) = 0.450166, d loss / d log pi = -+0.0450166,
    # twice, since both samples carry the loss.
    x = batch([[0.25, 0.25], [1.0, 0.5], [-0.5]], [-1.0, 1.0, -1.0], units=[4, 9, 9])
    x = ObjectiveInput(*(part[1:] for part in x))
    x.logprobs_BT.retain_grad()
    loss_B, weight_B, _ = make_objective("dpo").loss(x)
    loss_B.sum().backward()
    assert loss_B.tolist() == pytest.approx([0.598139, 0.598139], rel=1e-5)
    assert weight_B.tolist() == pytest.approx([0.450166, 0.450166], rel=1e-5)
    assert x.logprobs_BT.grad is not None
    expected = torch.tensor([[-0.0900332, -0.0900332], [0.0900332, 0.0900332]])
    torch.testing.assert_close(x.logprobs_BT.grad, expected)  # beyond a row's end no one reads it


def test_dpo_refuses_half_a_pair():
    with pytest.raises(ValueError, match="pairs are not whole"):
        make_objective("dpo").loss(batch([[0.0], [0.0], [0.0]], [1.0, -1.0, 1.0], units=[1, 1, 2]))


def test_a_stronger_beta_of_dpo_scales_the_margin():
    x = batch([[1.0], [0.0]], [1.0, -1.0], units=[0, 0])
    loss_B = make_objective(Preference(name="dpo", beta=2)).loss(x).loss_B
    assert loss_B[0].item() == pytest.approx(0.126928, rel=1e-5)  # -log sigmoid(2)


def exact(objective, logprobs_BT, behaviour_BT, mask_BT, advantage_B) -> torch.Tensor:
    """The formula as written in the papers, for autograd in float64; the ratio of PPO and GRPO is
    differentiated, not weighted."""
    length_B = mask_BT.sum(1)
    ratio_BT = logprobs_BT - behaviour_BT
    if objective in ("ppo", "grpo"):
        r = ratio_BT.exp() if objective == "grpo" else ratio_BT.sum(1).exp()[:, None]
        a = advantage_B[:, None]
        surrogate_BT = torch.minimum(r * a, r.clamp(0.8, 1.2) * a) * mask_BT
        return -(surrogate_BT.sum(1) if objective == "grpo" else surrogate_BT[:, 0]) / length_B
    bounds = objective if isinstance(objective, Bounds) else PRESETS[objective]
    ratio_B = ratio_BT.sum(1).exp().detach()
    weight_B = torch.where(
        advantage_B >= 0,
        ratio_B.clamp(bounds.positive[0], bounds.positive[1]),
        ratio_B.clamp(bounds.negative[0], bounds.negative[1]),
    )
    return -weight_B * advantage_B * logprobs_BT.sum(1) / length_B


@pytest.mark.parametrize("objective", CHOICES, ids=str)
def test_gradient_is_that_of_the_written_formula_in_float64(objective):
    generator = torch.Generator().manual_seed(0)
    length_B = torch.randint(1, 40, (50,), generator=generator)
    mask_BT = torch.arange(40) < length_B[:, None]
    logprobs_BT = -torch.rand(50, 40, generator=generator, dtype=torch.float64) * mask_BT
    ratio_BT = 0.3 * torch.randn(50, 40, generator=generator, dtype=torch.float64) * mask_BT
    advantage_B = torch.randn(50, generator=generator, dtype=torch.float64)

    wanted_BT = logprobs_BT.clone().requires_grad_()
    exact(objective, wanted_BT, logprobs_BT - ratio_BT, mask_BT, advantage_B).sum().backward()
    ours_BT = logprobs_BT.float().requires_grad_()
    x = ObjectiveInput(
        ours_BT,
        (logprobs_BT - ratio_BT).float(),
        mask_BT,
        advantage_B.float(),
        advantage_B.float(),
        torch.arange(50),
    )
    make_objective(objective).loss(x).loss_B.sum().backward()
    assert ours_BT.grad is not None and wanted_BT.grad is not None
    torch.testing.assert_close(
        ours_BT.grad.double(), wanted_BT.grad * mask_BT, rtol=1e-5, atol=1e-12
    )


@pytest.mark.parametrize("objective", CHOICES, ids=str)
def test_a_sample_counts_the_same_whatever_it_is_padded_with_and_whoever_is_beside_it(objective):
    ratios, advantages = [[0.1, -0.2], [0.3] * 7, [-0.5]], [1.0, -1.0, -0.3]
    loss = make_objective(objective).loss
    together = loss(batch(ratios, advantages))
    for order in ([2, 1, 0], [1], [0, 2]):
        again = loss(batch([ratios[i] for i in order], [advantages[i] for i in order]))
        for part, of_all in zip(again, together, strict=True):
            torch.testing.assert_close(part, of_all[order], rtol=1e-6, atol=0)


def test_negative_weight_vanishes_when_the_policy_left_the_sample():
    _, weight, gradient = one("topr", -50.0, -1.0, 200, logprob=-300.0)
    assert weight == pytest.approx(1.92875e-22, rel=1e-4)  # exp(-50), and not exp(-50 / 200) = 0.78
    assert gradient == pytest.approx(-9.64375e-25, rel=1e-4)


@pytest.mark.parametrize(
    ("objective", "log_ratio", "advantage", "weight"),
    [
        ("topr", -10_000.0, -1.0, 0.0),
        ("topr", -10_000.0, 1.0, 1.0),
        ("topr", 10_000.0, -1.0, 1.0),
        ("positives", 10_000.0, -1.0, 0.0),
        ("reinforce", -10_000.0, -1.0, 1.0),
        ("reinforce", 10_000.0, -1.0, 1.0),
        ("tis", -10_000.0, 1.0, 0.0),
        ("tis", 10_000.0, -1.0, 1.0),
        ("importance_sampling", -10_000.0, 1.0, 0.0),
        ("importance_sampling", 10_000.0, 1.0, math.exp(30)),
        ("importance_sampling", 10_000.0, -1.0, math.exp(30)),
        ("ppo", 10_000.0, 1.0, 0.0),
        ("ppo", 10_000.0, -1.0, math.exp(30)),
        ("ppo", -10_000.0, 1.0, 0.0),
        ("grpo", 10_000.0, -1.0, math.exp(30)),
        ("grpo", -10_000.0, 1.0, 0.0),
    ],
)
def test_extreme_ratios_end_at_the_bounds_without_overflow(objective, log_ratio, advantage, weight):
    loss, found, gradient = one(objective, log_ratio, advantage, 10, logprob=-20_000.0)
    assert found == pytest.approx(weight, rel=1e-5)
    assert gradient == pytest.approx(weight * advantage / 10, rel=1e-5)
    assert math.isfinite(loss)


def test_dpo_stays_finite_at_extreme_margins():
    x = batch([[-10_000.0], [10_000.0]], [1.0, -1.0], units=[0, 0])
    loss_B, weight_B, _ = make_objective("dpo").loss(x)
    loss_B.sum().backward()
    assert loss_B.tolist() == [2000.0, 2000.0] and weight_B.tolist() == [1.0, 1.0]
    assert x.logprobs_BT.grad is not None and x.logprobs_BT.grad.isfinite().all()


def test_a_dropped_sample_gives_exactly_no_gradient_even_where_the_policy_gives_it_no_chance():
    x = batch([[0.0, 0.0], [0.0, 0.0]], [-1.0, 1.0], logprob=-0.5)
    logprobs_BT = torch.tensor([[-math.inf, -1.0], [-0.5, -0.5]], requires_grad=True)
    loss_B = make_objective("positives").loss(x._replace(logprobs_BT=logprobs_BT)).loss_B
    loss_B.sum().backward()
    assert loss_B.tolist() == [0.0, 0.5]
    assert logprobs_BT.grad is not None
    assert logprobs_BT.grad.tolist() == [[0.0, 0.0], [-0.5, -0.5]]


def test_a_baseline_splits_by_the_sign_of_the_advantage_not_of_the_reward():
    # R = 0.2 with c = 0.5 is trained down, so it is tapered as a negative.
    _, weight, gradient = one("topr", -2.0, 0.2 - 0.5, 1)
    assert weight == pytest.approx(0.135335, rel=1e-5)
    assert gradient == pytest.approx(-0.3 * 0.135335, rel=1e-5)


def test_only_objectives_with_a_constant_weight_do_without_behaviour_log_probs():
    reading = {n for n in (*PRESETS, "ppo", "grpo", "dpo") if make_objective(n).reads_behaviour}
    assert reading == {"topr", "importance_sampling", "tis", "ppo", "grpo", "dpo"}


# ------------------------------------------------------------------------------------- one's own


def square(x: ObjectiveInput) -> Loss:
    return Loss(x.logprobs_BT.sum(1) ** 2, torch.ones_like(x.advantage_B), x.log_ratio_BT.sum(1))


def scalar(x: ObjectiveInput) -> Loss:
    return Loss(x.logprobs_BT.sum(), x.advantage_B, x.advantage_B)


def forgetful(x: ObjectiveInput) -> None:
    return None


WITHOUT_MU = Objective(square, reads_behaviour=False)


@pytest.fixture
def own(monkeypatch):
    """The dotted path of a name in this file."""
    monkeypatch.setitem(sys.modules, "own_objectives", sys.modules[__name__])
    return lambda name: f"python: own_objectives:{name}"


def test_ones_own_objective_is_a_function_or_an_objective(own):
    x = batch([[0.0, 0.0]], [1.0])
    assert make_objective(own("square")).loss(x).loss_B.item() == 4.0
    assert make_objective(own("square")).reads_behaviour
    assert not make_objective(own("WITHOUT_MU")).reads_behaviour


def test_the_example_of_the_documentation_runs():
    page = Path(__file__).parents[2] / "docs" / "training.md"
    [code] = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    scope: dict[str, Any] = {}
    exec(code, scope)
    # exp(2 * -0.5) = 0.367879, and log pi / length = -1
    loss_B = scope["loss"](batch([[-0.25, -0.25], [0.5]], [-1.0, 1.0])).loss_B
    torch.testing.assert_close(loss_B, torch.tensor([-0.367879, 1.0]))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "cannot be imported"),
        ("CASES", "a function from ObjectiveInput to Loss"),
        ("scalar", r"a Loss of shapes \[\(\), \(1,\), \(1,\)\]"),
        ("forgetful", "returned a NoneType"),
    ],
)
def test_ones_own_objective_is_refused_with_what_is_accepted(own, name, said):
    with pytest.raises(ToprError, match=said):
        make_objective(own(name)).loss(batch([[0.0]], [1.0]))


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("python: my.module:loss", "python:my.module:loss"),
        ({"negative": [0, 2]}, Bounds(negative=(0, 2))),
        ({"name": "grpo", "epsilon": 0.1}, Clipped(name="grpo", epsilon=0.1)),
        ({"name": "dpo"}, Preference(name="dpo")),
    ],
)
def test_the_yaml_takes_a_name_bounds_or_a_name_with_its_numbers(given, made):
    assert Training.model_validate({"objective": given}).objective == made


@pytest.mark.parametrize(
    "given", ["trpo", {"name": "topr"}, {"name": "dpo", "epsilon": 0.2}, {"a": 1}]
)
def test_the_yaml_refuses_other_objectives(given):
    with pytest.raises(ValueError, match=r"accepted|Input should be"):
        Training.model_validate({"objective": given})


def test_every_name_of_the_yaml_is_an_objective():
    assert all(callable(make_objective(name).loss) for name in OBJECTIVES)
