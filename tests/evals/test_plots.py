import polars as pl
import pytest
from matplotlib.figure import Figure

from topr_pipeline import tables
from topr_pipeline.evals import learning_curve, reward_histogram, training_curve
from topr_pipeline.evals.plots import PANELS, _shown_metrics, pushed_apart, rate_axis

PNG = b"\x89PNG\r\n\x1a\n"


def scored(pass_at_1, k=8):
    rows = [
        ("pass@1", pass_at_1, pass_at_1 - 0.03, pass_at_1 + 0.03, 200),
        (f"pass@{k}", 0.9, 0.88, 0.92, 200),
        (f"maj@{k}", 0.89, 0.86, 0.91, 200),
        ("invalid", 0.2, 0.15, 0.25, 200),
    ]
    return pl.DataFrame(rows, schema=tables.EVAL_SCORES.schema, orient="row")


SCORES = {0: scored(0.3), 1: scored(0.6), 2: scored(0.8)}


def test_curve_shows_the_largest_k_that_all_iterations_have():
    assert _shown_metrics(SCORES) == ["pass@1", "pass@8", "maj@8"]
    assert _shown_metrics({0: scored(0.3, k=4), 1: scored(0.6)}) == ["pass@1"]


@pytest.mark.parametrize("scores", [{0: scored(0.3)}, SCORES, {k: scored(0.5) for k in range(40)}])
def test_learning_curve_is_a_png_for_one_and_for_many_iterations(scores):
    assert learning_curve(scores, "tiny").startswith(PNG)


@pytest.mark.parametrize(
    ("falling", "heights"),
    [
        ([0.5, 0.49, 0.1], [0.5, 0.45, 0.1]),
        ([0.001], [0.025]),
        ([0.02, 0.01, 0.0], [0.125, 0.075, 0.025]),  # no room below: pushed up
    ],
)
def test_labels_of_lines_that_end_together_are_pushed_apart(falling, heights):
    assert pushed_apart(falling, least=0.05, bottom=0) == pytest.approx(heights)


REWARDS = pl.DataFrame(
    {
        "prompt_id": ["a", "a", "b", "b", "c"],
        "outcome": ["correct", "incorrect", "invalid", "incorrect", "unverifiable"],
    }
)


@pytest.mark.parametrize("rewards", [REWARDS, REWARDS.head(1)])
def test_reward_histogram_is_a_png(rewards):
    assert reward_histogram(rewards).startswith(PNG)


def test_reward_histogram_of_nothing_verifiable_says_so():
    table = pl.DataFrame({"prompt_id": ["a"], "outcome": ["unverifiable"]})
    assert reward_histogram(table).startswith(PNG)


@pytest.mark.parametrize("weights", [[0.9, None, 0.5], [None, None, None]])
def test_training_curve_is_a_png_with_and_without_negatives(weights):
    figures = {column: [0.5, 0.2, 0.1] for column, *_ in PANELS}
    log = pl.DataFrame({**figures, "step": [1, 2, 3], "weight_negative": weights})
    assert training_curve(log).startswith(PNG)


@pytest.mark.parametrize("bins", [1, 2, 8])
def test_ticks_of_solve_rates_lie_from_0_to_100_percent(bins):
    axes = Figure().subplots()
    axes.bar([i / bins for i in range(bins + 1)], 1, width=0.82 / bins)
    rate_axis(axes)
    said = [label.get_text() for label in axes.get_xticklabels()]
    assert said == ["0%", "20%", "40%", "60%", "80%", "100%"]
