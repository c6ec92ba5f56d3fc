import itertools
import math

import numpy as np
import polars as pl
import pytest

from topr_pipeline import tables
from topr_pipeline.errors import ToprError
from topr_pipeline.evals import score
from topr_pipeline.evals.metrics import pass_at_k
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
            "none_correct": 0.0,
            "few_correct": 2 / 3,  # b and c, 1 of 4 each
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


def test_prompts_with_none_and_few_correct_samples_are_counted():
    prompts = {
        "none": "5:1 5:1 -:1 /:1",
        "a quarter": "7:1 5:1 5:1 5:1",
        "half": "7:1 5:1 7:1 5:1",
        "a third": "7:1 5:1 5:1 ?:1",
    }
    found = values(score(*sampled(prompts), Evaluation(samples_per_prompt=4, k=(1,)), seed=0))
    assert (found["none_correct"], found["few_correct"]) == (1 / 4, 1 / 4)


def test_a_score_adds_weighted_voting_and_best_of_k():
    rewards, solutions = sampled(EXAMPLE)
    scores = pl.Series([0.1, 0.2, 0.9, 1.0, 0.5, 0.9, 0.3, 0.0, 0.0, 0.0, 0.0, 0.7])
    found = values(score(rewards.with_columns(score=scores), solutions, EVALUATION, seed=0))
    plain = values(score(rewards, solutions, EVALUATION, seed=0))
    assert {m: found[m] for m in plain} == plain
    # a: 5 has .9 against .3 of 7; b: 7 has .9 against .8 of 5; c: 7 alone votes.
    assert found["weighted_maj@4"] == pytest.approx(2 / 3)
    # Highest: invalid, 7, 7.
    assert found["best@4"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("wrong", [-0.5, float("nan"), float("inf")])
def test_a_score_that_is_no_weight_is_refused_with_its_place(wrong):
    rewards, solutions = sampled(EXAMPLE)
    rewards = rewards.with_columns(score=pl.Series([0.5] * 11 + [wrong]))
    with pytest.raises(ToprError, match=r"1 of 12 scores.*'c', sample_index 3"):
        score(rewards, solutions, EVALUATION, seed=0)
