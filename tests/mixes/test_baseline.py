import pytest
from hypothesis import given
from hypothesis import strategies as st

from topr_pipeline.errors import ToprError
from topr_pipeline.mixes.baseline import (
    baseline_for,
    baseline_for_rewards,
    effective_share,
    effective_share_of_rewards,
)


@pytest.mark.parametrize(
    ("p", "c", "share"),
    [
        (0.3, 0.0, 0.3),
        (0.3, -1.0, 1.0),  # negatives are discarded
        (0.3, 1.0, 0.0),
        (0.5, 0.5, 0.25),  # 0.5 * 0.5 / 1
        (0.25, -0.5, 0.5),  # 0.25 * 1.5 / (1 - 0.5 * 0.5)
    ],
)
def test_effective_share_of_plus_and_minus_one(p, c, share):
    assert effective_share(p, c) == pytest.approx(share, abs=1e-15)


@pytest.mark.parametrize(
    ("p", "target", "c"), [(0.5, 0.25, 0.5), (0.25, 0.5, -0.5), (0.3, 0.3, 0.0), (0.3, 1.0, -1.0)]
)
def test_baseline_of_plus_and_minus_one(p, target, c):
    assert baseline_for(p, target) == pytest.approx(c, abs=1e-15)


@given(st.floats(1e-4, 1 - 1e-4), st.floats(1e-3, 1 - 1e-3))
def test_paper_formulas_are_the_case_of_two_rewards(p, target):
    rows = {1.0: p, -1.0: 1 - p}
    c = baseline_for(p, target)
    assert effective_share(p, c) == pytest.approx(target, abs=1e-9)
    assert baseline_for_rewards(rows, target) == pytest.approx(c, abs=1e-9)
    assert effective_share_of_rewards(rows, c) == pytest.approx(target, abs=1e-9)


@given(
    st.dictionaries(
        st.integers(-20, 20).map(lambda n: n / 10), st.integers(1, 10**7), min_size=2, max_size=5
    ),
    st.floats(1e-3, 1 - 1e-3),
)
def test_any_rewards_reach_any_target(rows, target):
    c = baseline_for_rewards(rows, target)
    assert min(rows) < c < max(rows)
    assert effective_share_of_rewards(rows, c) == pytest.approx(target, abs=1e-9)


def test_baseline_between_three_rewards_by_hand():
    # c = 0.5: above 1 * 0.5, below 1 * 0.5 + 2 * 1.5, so 0.5 / 4
    assert baseline_for_rewards({1.0: 1, 0.0: 1, -1.0: 2}, 0.125) == pytest.approx(0.5)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_one_sided_set_reaches_no_target(p):
    with pytest.raises(ToprError, match=r"mix\.effective_positive_share: 0\.2 cannot be reached"):
        baseline_for(p, 0.2)
    with pytest.raises(ToprError, match=r"mix\.effective_positive_share: 0\.2 cannot be reached"):
        baseline_for_rewards({2 * p - 1: 7, -2 * p + 1: 0}, 0.2)


@pytest.mark.parametrize("target", [-0.1, 1.5])
def test_target_that_is_no_share_is_refused(target):
    with pytest.raises(ToprError, match=r"mix\.effective_positive_share: .* is no share"):
        baseline_for(0.5, target)
    with pytest.raises(ToprError, match=r"mix\.effective_positive_share: .* is no share"):
        baseline_for_rewards({1.0: 1, -1.0: 1}, target)


@pytest.mark.parametrize(("p", "c"), [(0.0, -1.0), (1.0, 1.0)])
def test_baseline_that_leaves_no_advantage_is_refused(p, c):
    with pytest.raises(ToprError, match=r"mix\.baseline: .* all advantages R - c are 0"):
        effective_share(p, c)
    with pytest.raises(ToprError, match=r"mix\.baseline: .* all advantages R - c are 0"):
        effective_share_of_rewards({c: 5}, c)
