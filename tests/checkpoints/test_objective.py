import math

import pytest
import torch

from topr_pipeline.checkpoints.objective import PRESETS, bounds_of, reads_behaviour, tapered_loss
from topr_pipeline.experiment import Bounds

# By hand. exp(-2) = 0.135335, exp(-0.5) = 0.606531, exp(1) = 2.718282, exp(3) = 20.085537.
# The last column is d J / d log pi = weight * advantage / length.
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
    (Bounds(positive=(0.5, 2), negative=(0.25, 4)), 1.0, 1.0, 1, 2.0, 2.0),
    (Bounds(positive=(0.5, 2), negative=(0.25, 4)), -2.0, 1.0, 1, 0.5, 0.5),
    (Bounds(positive=(0.5, 2), negative=(0.25, 4)), 3.0, -1.0, 1, 4.0, -4.0),
    (Bounds(positive=(0.5, 2), negative=(0.25, 4)), -2.0, -1.0, 1, 0.25, -0.25),
]


def one(log_ratio, advantage, length, objective, logprob=-7.0):
    """Loss of a single sample, its weight, and d(-loss) / d log pi."""
    logprob_B = torch.tensor([logprob], requires_grad=True)
    result = tapered_loss(
        logprob_B,
        torch.tensor([logprob - log_ratio]),
        torch.tensor([advantage]),
        torch.tensor([length]),
        bounds_of(objective),
    )
    result.loss.backward()
    assert logprob_B.grad is not None
    return result.loss.item(), result.weight_B.item(), -logprob_B.grad.item()


@pytest.mark.parametrize(
    ("objective", "log_ratio", "advantage", "length", "weight", "coefficient"), CASES
)
def test_weight_and_gradient_are_those_computed_by_hand(
    objective, log_ratio, advantage, length, weight, coefficient
):
    loss, found, gradient = one(log_ratio, advantage, length, objective)
    assert found == pytest.approx(weight, rel=1e-5)
    assert gradient == pytest.approx(coefficient, rel=1e-5)
    assert loss == pytest.approx(7.0 * coefficient, rel=1e-5)


def test_loss_is_the_mean_over_the_samples():
    logprob_B = torch.tensor([-4.0, -6.0], requires_grad=True)
    loss, *_ = tapered_loss(
        logprob_B,
        torch.tensor([-4.0, -4.0]),
        torch.tensor([1.0, -1.0]),
        torch.tensor([2, 3]),
        PRESETS["topr"],
    )
    # -( 1 * 1 * -4 / 2  +  exp(-2) * -1 * -6 / 3 ) / 2
    assert loss.item() == pytest.approx((2 - 2 * 0.135335) / 2, rel=1e-5)


@pytest.mark.parametrize("objective", PRESETS)
def test_gradient_is_that_of_the_written_formula_in_float64(objective):
    generator = torch.Generator().manual_seed(0)
    logprob_B, behaviour_B = -20 * torch.rand(2, 50, generator=generator, dtype=torch.float64)
    advantage_B = torch.randn(50, generator=generator, dtype=torch.float64)
    length_B = torch.randint(1, 200, (50,), generator=generator)
    bounds = PRESETS[objective]

    exact_B = logprob_B.clone().requires_grad_()
    ratio_B = (exact_B - behaviour_B).exp().detach()
    weight_B = torch.where(
        advantage_B >= 0,
        ratio_B.clamp(bounds.positive[0], bounds.positive[1]),
        ratio_B.clamp(bounds.negative[0], bounds.negative[1]),
    )
    (-(weight_B * advantage_B * exact_B / length_B).mean()).backward()

    ours_B = logprob_B.float().requires_grad_()
    tapered_loss(ours_B, behaviour_B.float(), advantage_B.float(), length_B, bounds).loss.backward()
    assert ours_B.grad is not None and exact_B.grad is not None
    torch.testing.assert_close(ours_B.grad.double(), exact_B.grad, rtol=1e-5, atol=1e-12)


def test_negative_weight_vanishes_when_the_policy_left_the_sample():
    _, weight, gradient = one(-50.0, -1.0, 200, "topr", logprob=-300.0)
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
    ],
)
def test_extreme_ratios_end_at_the_bounds_without_overflow(objective, log_ratio, advantage, weight):
    loss, found, gradient = one(log_ratio, advantage, 10, objective, logprob=-20_000.0)
    assert found == pytest.approx(weight, rel=1e-5)
    assert gradient == pytest.approx(weight * advantage / 10, rel=1e-5)
    assert math.isfinite(loss)


@pytest.mark.parametrize(
    ("logprob", "behaviour"),
    [(-math.inf, -3.0), (-3.0, -math.inf), (-3.0, math.nan), (-math.inf, -math.inf)],
)
def test_a_dropped_sample_gives_exactly_no_gradient_whatever_its_log_probs(logprob, behaviour):
    logprob_B = torch.tensor([logprob, -2.0], requires_grad=True)
    loss, *_ = tapered_loss(
        logprob_B,
        torch.tensor([behaviour, -2.0]),
        torch.tensor([-1.0, 1.0]),
        torch.tensor([4, 4]),
        PRESETS["positives"],
    )
    loss.backward()
    assert loss.item() == 0.25
    assert logprob_B.grad is not None and logprob_B.grad.tolist() == [0.0, -0.125]


def test_a_baseline_splits_by_the_sign_of_the_advantage_not_of_the_reward():
    # R = 0.2 with c = 0.5 is trained down, so it is tapered as a negative.
    _, weight, gradient = one(-2.0, 0.2 - 0.5, 1, "topr")
    assert weight == pytest.approx(0.135335, rel=1e-5)
    assert gradient == pytest.approx(-0.3 * 0.135335, rel=1e-5)


def test_only_objectives_with_a_constant_weight_do_without_behaviour_log_probs():
    reading = {name for name, bounds in PRESETS.items() if reads_behaviour(bounds)}
    assert reading == {"topr", "importance_sampling", "tis"}
