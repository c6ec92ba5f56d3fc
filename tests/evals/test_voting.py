import itertools

import polars as pl
import pytest

from topr_pipeline.evals.voting import best_of, majority


def rows(words, scores=None):
    """Rows of one prompt; the right answer is 7, `-` invalid, `/` truncated."""
    odd = {"-": "invalid", "/": "truncated"}
    said = words.split()
    frame = pl.DataFrame(
        {
            "prompt_id": ["a"] * len(said),
            "sample_index": range(len(said)),
            "answer": [None if word in odd else word for word in said],
            "outcome": [odd.get(w, "correct" if w == "7" else "incorrect") for w in said],
        },
        schema_overrides={"answer": pl.String},
    )
    return (
        frame if scores is None else frame.with_columns(score=pl.Series(scores, dtype=pl.Float64))
    )


MAJORITY = [
    ("7 5 5 7", True),  # tie: 7 came first
    ("5 7 7 5", False),  # tie: 5 came first
    ("- 5 7 7", True),  # a sample without an answer has no vote
    ("- / - 7", True),
    ("- - / -", False),  # nobody votes
    ("5 6 7 7", True),
    ("5 6 6 7 7 7", False),  # only the first four vote
]


@pytest.mark.parametrize(("words", "right"), MAJORITY)
def test_majority_of_the_first_four(words, right):
    rewards = rows(words)
    assert majority(rewards, 4)["right"].to_list() == [right]


def test_majority_answer_is_right_if_one_of_its_samples_is():
    rewards = rows("7 7 5").with_columns(
        outcome=pl.Series(["truncated", "correct", "incorrect"], dtype=pl.String)
    )
    assert majority(rewards, 3)["right"].to_list() == [True]


WEIGHTED = [
    ("7 5 5", [0.9, 0.4, 0.4], True),
    ("7 5 5", [0.9, 0.5, 0.5], False),
    ("5 7 7", [0.3, 0.1, 0.2], False),  # a tie but for rounding: 5 came first
    ("5 7 7", [0.9, None, 0.5], False),  # a sample without a score has no vote
    ("5 7 7", [None, None, 0.0], True),  # a vote of weight 0 is one
    ("5 7 7", [None, None, None], False),  # nobody votes
    ("- 7 5", [1.0, 0.2, 0.1], True),  # a sample without an answer has no vote
]


@pytest.mark.parametrize(("words", "scores", "right"), WEIGHTED)
def test_majority_by_weight(words, scores, right):
    assert majority(rows(words, scores), 3, weight="score")["right"].to_list() == [right]


def test_equal_weights_are_a_plain_vote():
    for words in itertools.product("57-", repeat=4):
        frame = rows(" ".join(words), [0.5] * 4)
        assert majority(frame, 4, weight="score").equals(majority(frame, 4))


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_best_of_k_equals_the_mean_over_all_subsets(k):
    words, scores = "7 5 7 - 5", [0.3, 0.9, 0.8, 0.1, 0.2]
    subsets = list(itertools.combinations(zip(scores, words.split(), strict=True), k))
    expected = sum(max(subset)[1] == "7" for subset in subsets) / len(subsets)
    assert best_of(rows(words, scores), k)["right"].item() == pytest.approx(expected)


def test_best_of_k_shares_out_a_tie_and_passes_over_rows_without_a_score():
    assert best_of(rows("7 5 5 5", [0.5] * 4), 3)["right"].item() == pytest.approx(1 / 4)
    assert best_of(rows("7 7 5", [None, None, 0.1]), 3)["right"].item() == 0
    assert best_of(rows("7 7 5", [None, None, 0.1]), 2)["right"].item() == pytest.approx(1 / 3)


def test_best_of_k_by_the_verdict_is_pass_at_k():
    assert best_of(rows("7 5 5 7", [1, 0, 0, 1]), 2)["right"].item() == pytest.approx(5 / 6)


def test_prompts_with_fewer_than_k_rows_are_left_out():
    frame = rows("7 5", [1, 0])
    assert best_of(frame, 3).is_empty()
    assert majority(frame, 3).is_empty()
