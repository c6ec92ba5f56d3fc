import numpy as np
import pytest

from topr_pipeline.evals.bootstrap import bootstrap
from topr_pipeline.evals.metrics import pass_at_k

SIMULATIONS, PROMPTS, SAMPLES = 2000, 200, 8


def test_bootstrap_equals_quantiles_of_explicitly_resampled_means():
    values_PM = np.array([[0.0, 5.0], [1.0, np.nan], [0.5, 7.0], [1.0, 9.0]])
    drawn = np.random.default_rng(3).integers(0, 4, (500, 4), dtype=np.int32)
    means = np.ma.masked_invalid(values_PM[drawn]).mean(axis=1).filled(np.nan)
    low, high = np.nanquantile(means, [0.05, 0.95], axis=0)
    found_low, found_high = bootstrap(values_PM, 500, 0.9, seed=3)
    assert found_low == pytest.approx(low)
    assert found_high == pytest.approx(high)


def test_bootstrap_in_blocks_equals_bootstrap_at_once(monkeypatch):
    values_PM = np.random.default_rng(0).random((50, 2))
    whole = bootstrap(values_PM, 100, 0.95, seed=0)
    monkeypatch.setattr("topr_pipeline.evals.bootstrap._BLOCK", 150)
    assert np.allclose(whole, bootstrap(values_PM, 100, 0.95, seed=0), rtol=0, atol=1e-12)


def correct_PS(rng):
    """Correct samples of SAMPLES; how hard a prompt is comes from Beta(2, 3)."""
    return rng.binomial(SAMPLES, rng.beta(2, 3, (PROMPTS, SIMULATIONS)))


def pass_at_4(rng):
    n = np.full(PROMPTS * SIMULATIONS, SAMPLES)
    return pass_at_k(n, correct_PS(rng).ravel(), 4).reshape(PROMPTS, SIMULATIONS)


def gained(rng):
    """Two evals of the same prompts, the second of a policy that is surer of itself."""
    rate_PS = rng.beta(2, 3, (PROMPTS, SIMULATIONS))
    after_PS, before_PS = rng.binomial(SAMPLES, rate_PS**0.8), rng.binomial(SAMPLES, rate_PS)
    return (after_PS - before_PS) / SAMPLES


def beta_moment(power):
    """E x^power of Beta(2, 3), whose density is 12 x (1-x)^2."""
    a, b, c = 1 / (power + 2), 1 / (power + 3), 1 / (power + 4)
    return 12 * (a - 2 * b + c)


CASES = {
    "pass@1": (lambda rng: correct_PS(rng) / SAMPLES, 0.4),
    # 1 - E(1-x)^4, and 1-x is of Beta(3, 2): its fourth moment is 12 (1/7 - 1/8).
    "pass@4": (pass_at_4, 1 - 12 * (1 / 7 - 1 / 8)),
    "a share of prompts": (lambda rng: 1.0 * (rng.random((PROMPTS, SIMULATIONS)) < 0.2), 0.2),
    "mean tokens": (lambda rng: rng.gamma(3, 20, (PROMPTS, SIMULATIONS)), 60),
    "paired difference": (gained, beta_moment(0.8) - 0.4),
}


@pytest.mark.parametrize(("draw", "truth"), CASES.values(), ids=CASES)
def test_nominal_95_percent_intervals_cover_93_to_97_percent(draw, truth):
    low_S, high_S = bootstrap(draw(np.random.default_rng(1)), 1000, 0.95, seed=2)
    covered = ((low_S <= truth) & (truth <= high_S)).mean()
    assert 0.93 <= covered <= 0.97


def test_a_prompt_without_a_value_is_drawn_and_does_not_count():
    values_PM = np.array([[1.0], [np.nan], [3.0]])
    low, high = bootstrap(values_PM, 2000, 0.95, seed=0)
    assert (low[0], high[0]) == (1.0, 3.0)
