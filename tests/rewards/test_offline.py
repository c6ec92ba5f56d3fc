"""Rewards that came with a set."""

import polars as pl
import pytest

from topr_pipeline.errors import ToprError
from topr_pipeline.rewards import given_rewards

CASES = [  # reward, outcome, finish_reason -> outcome
    (1.0, None, "stop", "correct"),
    (0.3, None, "length", "correct"),
    (0.0, None, "stop", "incorrect"),
    (-1.0, None, "stop", "incorrect"),
    (-1.0, None, "length", "truncated"),
    (None, None, "stop", "unverifiable"),
    (-1.0, "invalid", "length", "invalid"),
    (None, "truncated", "length", "truncated"),
]


def tables(reward, outcome, finish_reason) -> tuple[pl.DataFrame, pl.DataFrame]:
    key = {"prompt_id": ["a"], "sample_index": pl.Series([0], dtype=pl.Int32)}
    told = {
        "reward": pl.Series([reward], dtype=pl.Float64),
        "outcome": pl.Series([outcome], dtype=pl.String),
        "answer": pl.Series(["3"], dtype=pl.String),
    }
    return pl.DataFrame({**key, **told}), pl.DataFrame({**key, "finish_reason": [finish_reason]})


@pytest.mark.parametrize(("reward", "outcome", "reason", "expected"), CASES)
def test_an_outcome_that_is_not_given_is_told_by_the_reward(reward, outcome, reason, expected):
    found = given_rewards(*tables(reward, outcome, reason), "given: score").row(0, named=True)
    assert (found["reward"], found["outcome"]) == (reward, expected)
    assert (found["answer"], found["verifier"]) == ("3", "given: score")
    assert (found["detail"] is None) == (reward is not None)


def test_a_solution_that_the_set_lacks_is_an_error():
    rows, solutions = tables(1.0, None, "stop")
    with pytest.raises(ToprError, match=r"no row for the solution \('a', 0\) any more"):
        given_rewards(rows.clear(), solutions, "given: score")
