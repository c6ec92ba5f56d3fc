import polars as pl
import pytest

from tests.mixes.conftest import mixed, rewarded
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Mix, RewardValues
from topr_pipeline.mixes import checks
from topr_pipeline.tables import MIX

EXAMPLE = {"a": "-+i+t+", "b": "--i", "c": "+u-"}
"""Sample i has i + 1 tokens."""

ANNA = {"strategy": "anna_karenina"}
STEPS = [
    ([], {"a": [0, 1, 2, 3, 4, 5], "b": [0, 1, 2], "c": [0, 2]}),
    ([{"strategy": "uniform"}], {"a": [0, 1, 2, 3, 4, 5], "b": [0, 1, 2], "c": [0, 2]}),
    (
        [{"strategy": "uniform", "samples_per_prompt": 2}],
        {"a": [0, 1], "b": [0, 1], "c": [0, 2]},  # of c the sample without a reward is gone first
    ),
    ([ANNA], {"a": [0, 1, 2, 4], "b": [0, 1, 2], "c": [0, 2]}),
    ([ANNA | {"correct": 2, "incorrect": 1}], {"a": [0, 1, 3], "b": [0], "c": [0, 2]}),
    (
        [ANNA | {"incorrect": 2}, {"strategy": "uniform", "samples_per_prompt": 1}],
        {"a": [0], "b": [0], "c": [0]},
    ),
    # solve rates: a 1/2, b 0, c 1/2 of the two that could be verified
    ([{"strategy": "difficulty", "solve_rate": [0.5, 1]}], {"a": [*range(6)], "c": [0, 2]}),
    ([{"strategy": "difficulty", "solve_rate": [0, 0.4]}], {"b": [0, 1, 2]}),
    (
        # of all samples, not of those that are left
        [ANNA, {"strategy": "difficulty", "solve_rate": [0.5, 0.5]}],
        {"a": [0, 1, 2, 4], "c": [0, 2]},
    ),
    (
        [{"strategy": "outcome", "outcomes": ["truncated", "invalid"]}],
        {"a": [2, 4], "b": [2]},
    ),
    ([{"strategy": "length", "max_tokens": 2}], {"a": [0, 1], "b": [0, 1], "c": [0]}),
    ([{"strategy": "length", "min_tokens": 3}], {"a": [2, 3, 4, 5], "b": [2], "c": [2]}),
    (
        [{"strategy": "length", "max_tokens": 2, "over": "cap"}],
        {"a": [0, 1, 2, 3, 4, 5], "b": [0, 1, 2], "c": [0, 2]},
    ),
    (
        [{"strategy": "sql", "sql": "SELECT * FROM rows WHERE outcome = 'correct'"}],
        {"a": [1, 3, 5], "c": [0]},
    ),
    (
        [{"strategy": "sql", "sql": "FROM rows WHERE length = 3 AND text = 'so 2'"}, ANNA],
        {"a": [2], "b": [2], "c": [2]},
    ),
]


@pytest.mark.parametrize(("steps", "expected"), STEPS, ids=[str(s[0])[:70] for s in STEPS])
def test_each_strategy_keeps_the_rows_it_says(cut, steps, expected):
    assert cut(EXAMPLE, steps=steps).kept == expected


TEXTS = {"a": ["x = 1.5", "X  = 1.5!", "x = 1.5", "x = -1.5"], "b": ["x = 1.5"] * 2}
ANSWERS = {"a": ["1", "2", None, "1", "1", None]}
DUPLICATES = [
    ({"by": "completion"}, {"a": [0, 1, 3], "b": [0]}),
    ({"by": "completion", "keep": 2}, {"a": [0, 1, 2, 3], "b": [0, 1]}),
    ({"by": "wording"}, {"a": [0, 3], "b": [0]}),  # a minus is no punctuation
    ({"by": "wording", "keep": 2}, {"a": [0, 1, 3], "b": [0, 1]}),
]


@pytest.mark.parametrize(("step", "expected"), DUPLICATES)
def test_duplicates_are_those_of_the_same_prompt(cut, step, expected):
    steps = [{"strategy": "dedupe", **step}]
    assert cut({"a": "+-+-", "b": "-+"}, texts=TEXTS, steps=steps).kept == expected


@pytest.mark.parametrize(("keep", "expected"), [(1, [0, 1, 2, 5]), (2, [0, 1, 2, 3, 5])])
def test_a_sample_without_an_answer_is_no_ones_duplicate(cut, keep, expected):
    steps = [{"strategy": "dedupe", "by": "answer", "keep": keep}]
    assert cut({"a": "++i+-i"}, answers=ANSWERS, steps=steps).kept == {"a": expected}


def test_capped_completions_keep_their_first_tokens_and_their_log_mu(cut):
    steps = [{"strategy": "length", "max_tokens": 2, "over": "cap"}]
    frame = cut({"a": "+--"}, steps=steps).frame
    assert frame["token_ids"].to_list() == [[0], [7, 1], [7, 7]]
    assert frame["logprobs"].to_list() == [[-0.5], [-1.0, -1.5], [-1.0, -1.0]]
    assert frame["logprob"].to_list() == [-0.5, -2.5, -2.0]


@pytest.mark.parametrize(
    ("share", "positives", "negatives"), [(0.5, 3, 3), (0.25, 1, 3), (0.75, 6, 2), (0.9, 6, 1)]
)
def test_balance_drops_from_the_class_that_is_too_large(cut, share, positives, negatives):
    steps = [{"strategy": "balance", "positive_share": share}]
    frame = cut({"a": "+++-", "b": "+-", "c": "++-"}, steps=steps).frame
    assert ((frame["reward"] > 0).sum(), (frame["reward"] < 0).sum()) == (positives, negatives)


def test_balance_of_rows_of_one_sign_is_an_error(cut):
    steps = [{"strategy": "balance", "positive_share": 0.5}]
    with pytest.raises(ToprError, match=r"mix\.steps\.0\.positive_share: 0\.5 cannot be reached"):
        cut({"a": "---"}, steps=steps)


def test_limit_keeps_that_many_rows_and_depends_on_the_seed(cut):
    prompts = {name: "+-" * 8 for name in "abcdef"}
    steps = [{"strategy": "limit", "rows": 20}]
    tables, mix = {1: rewarded(prompts)}, Mix.model_validate({"steps": steps})
    first, again, other = (mixed(tables, mix, seed) for seed in (0, 0, 1))
    assert first.frame.height == 20
    assert first.rows == again.rows != other.rows
    assert first.rows < cut(prompts).rows
    assert cut(prompts, steps=[{"strategy": "limit", "rows": 97}]).frame.height == 96


def test_mix_carries_tokens_logprobs_and_advantage_of_its_own_rows(cut):
    made = cut({"b": "+-", "a": "-"}, baseline=0.25)
    assert made.frame.schema == MIX.schema
    assert made.frame.rows() == [
        ("a", 0, 1, -1.0, -1.25, [1, 2], [0], [-0.5], -0.5),
        ("b", 0, 1, 1.0, 0.75, [1, 2], [0], [-0.5], -0.5),
        ("b", 1, 1, -1.0, -1.25, [1, 2], [7, 1], [-1.0, -1.5], -2.5),
    ]
    assert made.curated.baseline == 0.25
    assert made.curated.positive_share == pytest.approx(1 / 3)
    assert made.curated.effective_positive_share == pytest.approx(0.75 / 3.25)


def test_waterfall_counts_the_rows_after_each_step(cut):
    query = "SELECT *  FROM rows WHERE prompt_id <> 'b'"
    steps = [ANNA, {"strategy": "sql", "sql": query}, {"strategy": "uniform"}]
    assert [tuple(step.values()) for step in cut(EXAMPLE, steps=steps).curated.waterfall] == [
        ("rewards", 12, 3, 4),
        ("with a reward", 11, 3, 4),
        ("anna_karenina correct=1", 9, 3, 2),
        ("sql sql=SELECT * FROM rows WHERE prompt_id <> 'b'", 6, 2, 2),
        ("uniform", 6, 2, 2),
    ]


def test_composition_and_solve_rates_say_what_the_mix_is_made_of(cut):
    curated = cut(EXAMPLE, steps=[ANNA]).curated
    assert curated.composition == [
        {
            "iteration": 1, "samples": 12, "after_steps": 9, "rows": 9, "prompts": 3,
            "positives": 2, "correct": 2, "incorrect": 4, "invalid": 2, "truncated": 1,
        }
    ]  # fmt: skip
    assert curated.solve_rates == [
        {"solve_rate": 0.0, "all_samples": 1, "mix": 1},
        {"solve_rate": 0.25, "all_samples": 0, "mix": 1},
        {"solve_rate": 0.5, "all_samples": 2, "mix": 1},
    ]
    assert curated.samples_per_prompt == 6


DEGENERATE = [
    ({"a": "+++", "b": "+"}, {"a": [0], "b": [0]}, 1.0),
    ({"a": "-i-"}, {"a": [0, 1, 2]}, 0.0),
    ({"a": "+"}, {"a": [0]}, 1.0),
    ({"a": "u", "b": "-"}, {"b": [0]}, 0.0),
]


@pytest.mark.parametrize(("prompts", "expected", "share"), DEGENERATE)
def test_one_sided_sets_are_cut_and_fail_their_check(cut, prompts, expected, share):
    made = cut(prompts, steps=[ANNA])
    assert made.kept == expected
    assert made.curated.positive_share == made.curated.effective_positive_share == share
    found = checks(made.frame.lazy(), Mix())
    assert [check.passed for check in found] == [share == 1, share == 0]
    with pytest.raises(ToprError, match=r"mix\.effective_positive_share: 0\.2 cannot be reached"):
        cut(prompts, effective_positive_share=0.2)


@pytest.mark.parametrize("prompts", [{}, {"a": "uu", "b": "u"}])
def test_mix_without_rows_is_an_error_that_shows_where_they_went(cut, prompts):
    with pytest.raises(ToprError, match=r"iteration 1 has no rows \(rewards: \d -> with a reward"):
        cut(prompts)


def test_steps_that_leave_nothing_are_an_error_that_names_them(cut):
    steps = [{"strategy": "difficulty", "solve_rate": [0.9, 1]}, {"strategy": "limit", "rows": 1}]
    with pytest.raises(
        ToprError, match=r"difficulty solve_rate=\(0.9, 1.0\): 0 -> limit rows=1: 0"
    ):
        cut({"a": "+-"}, steps=steps)


@pytest.mark.parametrize(("prompts", "baseline"), [({"a": "++"}, 1.0), ({"a": "--"}, -1.0)])
def test_mix_whose_advantages_are_all_zero_is_an_error(cut, prompts, baseline):
    with pytest.raises(ToprError, match=r"mix\.baseline: -?1 equals every reward"):
        cut(prompts, baseline=baseline)


def test_rewards_may_be_other_than_plus_and_minus_one(cut):
    values = RewardValues(correct=2.0, incorrect=0.0, invalid=-1.0)
    curated = cut({"a": "+-i-"}, values, effective_positive_share=0.5).curated
    # c = 0.25: above 1.75, below 0.25 + 1.25 + 0.25
    assert curated.baseline == pytest.approx(0.25)
    assert curated.effective_positive_share == pytest.approx(0.5)
    assert curated.positive_share == 0.25


def test_rewards_and_solutions_must_be_of_the_same_samples():
    solutions, rewards = rewarded({"a": "+-"})
    with pytest.raises(ToprError, match=r"1 of 2 rewards have no solution.*'a', sample_index 1"):
        mixed({1: (solutions.head(1), rewards)}, Mix())
    with pytest.raises(ToprError, match=r"1 of 2 solutions have no reward.*'a', sample_index 0"):
        mixed({1: (solutions, rewards.tail(1))}, Mix())


def test_checks_count_advantages_and_name_their_key(cut):
    table = cut({"a": "+-"}).frame.lazy()
    positives, negatives = checks(table, Mix(min_positives=2, min_negatives=0))
    assert (positives.name, positives.passed) == ("min_positives", False)
    assert positives.figures == {"count": 1, "least": 2}
    assert "mix.min_positives wants 2 or more" in positives.message
    assert (negatives.name, negatives.passed) == ("min_negatives", True)


def test_baseline_of_minus_one_leaves_no_negatives_to_train_on(cut):
    made = cut({"a": "+--"}, baseline=-1)
    assert made.curated.effective_positive_share == 1
    assert [check.passed for check in checks(made.frame.lazy(), Mix())] == [True, False]


def test_texts_answers_and_lengths_are_read_only_where_a_step_does(monkeypatch, cut):
    from topr_pipeline.mixes import rows

    unread = {name: pl.col("no such column") for name in rows.OF_SOLUTIONS}
    monkeypatch.setattr(rows, "OF_SOLUTIONS", unread)
    monkeypatch.setattr(rows, "OF_REWARDS", {"answer": pl.col("no such column")})
    query = "SELECT prompt_id, sample_index FROM rows WHERE solve_rate < 1 AND reward > -2"
    steps = [ANNA, {"strategy": "sql", "sql": query}, {"strategy": "limit", "rows": 3}]
    assert cut(EXAMPLE, steps=steps).frame.height == 3
    with pytest.raises(pl.exceptions.ColumnNotFoundError):
        cut(EXAMPLE, steps=[{"strategy": "length"}])
