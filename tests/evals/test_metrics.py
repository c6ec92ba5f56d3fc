import itertools
import math

import numpy as np
import polars as pl
import pytest

from topr_pipeline import tables
from topr_pipeline.errors import ToprError
from topr_pipeline.evals import score
from topr_pipeline.evals.metrics import bootstrap, majority, pass_at_k
from topr_pipeline.experiment import Evaluation

EVALUATION = Evaluation(samples_per_prompt=4, k=(1, 2, 4), bootstrap=200)


def sampled(prompts):
    """Rewards and solutions of {prompt_id: "answer:tokens ..."}; the right answer is 7.

    `-` is invalid, `/` truncated, `?` unverifiable.
    """
    odd = {"-": "invalid", "/": "truncated", "?": "unverifiable"}
    rows = [
        (prompt, i, None if said in odd else said, odd.get(said), int(tokens))
        for prompt, words in prompts.items()
        for i, (said, tokens) in enumerate(word.split(":") for word in words.split())
    ]
    frame = pl.DataFrame(
        rows,
        schema={
            "prompt_id": pl.String,
            "sample_index": pl.Int32,
            "answer": pl.String,
            "odd": pl.String,
            "tokens": pl.Int64,
        },
        orient="row",
    )
    right = pl.when(pl.col("answer") == "7").then(pl.lit("correct")).otherwise(pl.lit("incorrect"))
    return (
        frame.select(
            "prompt_id", "sample_index", "answer", pl.coalesce("odd", right).alias("outcome")
        ),
        frame.select("prompt_id", "sample_index", token_ids=pl.lit(1).repeat_by("tokens")),
    )


EXAMPLE = {
    "a": "7:1 7:3 5:5 -:7",  # 2 of 4; 7 wins
    "b": "5:2 7:2 5:2 /:6",  # 1 of 4; 5 wins
    "c": "-:1 -:1 -:1 7:1",  # 1 of 4; no vote among the first two, 7 among four
}


def values(table):
    return dict(table.select("metric", "value").iter_rows())


def test_scores_equal_values_computed_by_hand():
    table = score(*sampled(EXAMPLE), EVALUATION, seed=0)
    assert table.schema == tables.EVAL_SCORES.schema
    assert table["n"].to_list() == [3] * table.height
    assert values(table) == pytest.approx(
        {
            "pass@1": (2 / 4 + 1 / 4 + 1 / 4) / 3,
            "pass@2": ((1 - 1 / 6) + 1 / 2 + 1 / 2) / 3,
            "pass@4": 1.0,
            "maj@2": 1 / 3,  # a; of b 5 comes first in a tie
            "maj@4": 2 / 3,
            "invalid": (1 / 4 + 0 + 3 / 4) / 3,
            "truncated": (1 / 4) / 3,
            "unverifiable": 0.0,
            "mean_tokens": (4 + 3 + 1) / 3,
        }
    )


@pytest.mark.parametrize(
    ("evaluation", "metrics"),
    [
        (Evaluation(samples_per_prompt=4), ["pass@1", "pass@4", "maj@4"]),
        (Evaluation(samples_per_prompt=4, k=(1,)), ["pass@1"]),
        (Evaluation(samples_per_prompt=4, k=(4, 2, 4)), ["pass@1", "pass@2", "pass@4", "maj@2"]),
    ],
)
def test_each_metric_stands_once_and_the_default_k_is_all_samples(evaluation, metrics):
    found = score(*sampled(EXAMPLE), evaluation, seed=0)["metric"].to_list()
    assert found[: len(metrics)] == metrics
    assert len(found) == len(set(found))


@pytest.mark.parametrize("n", [1, 3, 6])
def test_pass_at_k_equals_the_share_of_subsets_with_a_correct_sample(n):
    for correct, k in itertools.product(range(n + 1), range(1, n + 1)):
        subsets = list(itertools.combinations([True] * correct + [False] * (n - correct), k))
        share = sum(map(any, subsets)) / len(subsets)
        assert pass_at_k(np.array([n]), np.array([correct]), k)[0] == pytest.approx(share)
        assert share == pytest.approx(1 - math.comb(n - correct, k) / math.comb(n, k))


def test_pass_at_k_is_undefined_for_fewer_than_k_samples():
    assert np.isnan(pass_at_k(np.array([3]), np.array([3]), 4)).all()


MAJORITY = [
    ("7:1 5:1 5:1 7:1", True),  # tie: 7 came first
    ("5:1 7:1 7:1 5:1", False),  # tie: 5 came first
    ("-:1 5:1 7:1 7:1", True),  # a sample without an answer has no vote
    ("-:1 /:1 -:1 7:1", True),
    ("-:1 -:1 /:1 -:1", False),  # nobody votes
    ("5:1 6:1 7:1 7:1", True),
    ("5:1 6:1 6:1 7:1 7:1 7:1", False),  # only the first four vote
]


@pytest.mark.parametrize(("words", "right"), MAJORITY)
def test_majority_of_the_first_four(words, right):
    rewards, _ = sampled({"a": words})
    assert majority(rewards, 4)["right"].to_list() == [right]


def test_majority_answer_is_right_if_one_of_its_samples_is():
    rewards, _ = sampled({"a": "7:1 7:1 5:1"})
    rewards = rewards.with_columns(
        outcome=pl.Series(["truncated", "correct", "incorrect"], dtype=pl.String)
    )
    assert majority(rewards, 3)["right"].to_list() == [True]


def test_unverifiable_samples_are_dropped_and_only_their_share_is_told():
    table = score(
        *sampled({"a": "7:1 ?:9 7:1 5:1", "b": "?:1 ?:1 ?:1 ?:1", "c": "5:2 5:2 5:2 7:2"}),
        Evaluation(samples_per_prompt=4, k=(3, 4)),
        seed=0,
    )
    found = values(table)
    assert found["pass@1"] == pytest.approx((2 / 3 + 1 / 4) / 2)
    assert found["maj@3"] == 0.5
    assert found["mean_tokens"] == pytest.approx((1 + 2) / 2)
    assert found["unverifiable"] == pytest.approx((1 / 4 + 1 + 0) / 3)
    rests_on = dict(table.select("metric", "n").iter_rows())
    assert (rests_on["pass@1"], rests_on["pass@3"], rests_on["pass@4"]) == (2, 2, 1)
    assert rests_on["unverifiable"] == 3


@pytest.mark.parametrize("prompts", [{}, {"a": "?:1 ?:1 ?:1 ?:1"}, {"a": "7:1 7:1"}])
def test_metric_without_a_prompt_is_an_error(prompts):
    with pytest.raises(ToprError, match=r"has no prompt to rest on.*evaluation\.k"):
        score(*sampled(prompts), EVALUATION, seed=0)


def test_rewards_must_be_of_the_solutions():
    rewards, solutions = sampled(EXAMPLE)
    with pytest.raises(ToprError, match="1 of 12 rewards have no solution"):
        score(rewards, solutions.head(11), EVALUATION, seed=0)


def test_scores_do_not_depend_on_the_order_of_rows_and_are_fixed_by_the_seed():
    rewards, solutions = sampled(EXAMPLE)
    table = score(rewards, solutions, EVALUATION, seed=1)
    assert score(rewards.reverse(), solutions[::-1], EVALUATION, seed=1).equals(table)
    other = score(rewards, solutions, EVALUATION, seed=2)
    assert other["value"].equals(table["value"])
    assert not other.select("low", "high").equals(table.select("low", "high"))


def test_interval_contains_the_value():
    table = score(*sampled(EXAMPLE), EVALUATION, seed=0)
    assert table.select(pl.col("value").is_between("low", "high").all()).item()


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
    monkeypatch.setattr("topr_pipeline.evals.metrics._BLOCK", 150)
    assert np.allclose(whole, bootstrap(values_PM, 100, 0.95, seed=0), rtol=0, atol=1e-12)


def test_nominal_95_percent_intervals_cover_about_95_percent():
    rng = np.random.default_rng(0)
    covered = 0
    for seed in range(300):
        values_PM = rng.binomial(8, rng.beta(2, 3, 150))[:, None] / 8  # expectation 0.4
        low, high = bootstrap(values_PM, 300, 0.95, seed)
        covered += bool(low[0] <= 0.4 <= high[0])
    assert 0.91 <= covered / 300 <= 0.985
