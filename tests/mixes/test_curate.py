import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topr_pipeline import tables
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import AnnaKarenina, Mix, RewardValues, Uniform
from topr_pipeline.mixes import Curated, checks, curate

LETTERS = {
    "+": "correct", "-": "incorrect", "i": "invalid", "t": "truncated", "u": "unverifiable"
}  # fmt: skip
KEEP_ALL = Mix()


def rewarded(prompts, values=RewardValues()):  # noqa: B008
    """Solutions and rewards of {prompt_id: one letter per sample}."""
    worth = values.model_dump()
    rows = [
        {"prompt_id": prompt, "sample_index": i, "outcome": LETTERS[letter]}
        for prompt, letters in prompts.items()
        for i, letter in enumerate(letters)
    ]
    schema = {"prompt_id": pl.String, "sample_index": pl.Int32, "outcome": pl.String}
    frame = pl.DataFrame(rows, schema=schema)
    rewards = frame.with_columns(
        answer=pl.lit("1"),
        reward=pl.Series([worth[o] for o in frame["outcome"]], dtype=pl.Float64),
        verifier=pl.lit("test/1"),
        detail=pl.lit(None, pl.String),
    )
    solutions = frame.select(
        "prompt_id",
        "sample_index",
        text=pl.lit("so 1"),
        prompt_token_ids=pl.concat_list(pl.lit(1), pl.lit(2)),
        token_ids=pl.concat_list(pl.col("sample_index")),
        logprobs=pl.concat_list(-0.5 - pl.col("sample_index")),
        logprob=-0.5 - pl.col("sample_index"),
        finish_reason=pl.lit("stop"),
        policy_version=pl.lit("v"),
        fingerprint=pl.lit("f"),
    )
    return tables.SOLUTIONS.conform(solutions), tables.REWARDS.conform(rewards)


def kept(curated: Curated) -> dict[str, list[int]]:
    return {
        str(key[0]): group["sample_index"].to_list()
        for key, group in curated.frame.group_by("prompt_id", maintain_order=True)
    }


EXAMPLE = {"a": "-+i+t+", "b": "--i", "c": "+u-"}
STEPS = [
    ((), {"a": [0, 1, 2, 3, 4, 5], "b": [0, 1, 2], "c": [0, 2]}),
    ((Uniform(strategy="uniform"),), {"a": [0, 1, 2, 3, 4, 5], "b": [0, 1, 2], "c": [0, 2]}),
    (
        (Uniform(strategy="uniform", samples_per_prompt=2),),
        {"a": [0, 1], "b": [0, 1], "c": [0, 2]},  # of c the sample without a reward is gone first
    ),
    ((AnnaKarenina(strategy="anna_karenina"),), {"a": [0, 1, 2, 4], "b": [0, 1, 2], "c": [0, 2]}),
    (
        (AnnaKarenina(strategy="anna_karenina", correct=2, incorrect=1),),
        {"a": [0, 1, 3], "b": [0], "c": [0, 2]},
    ),
    (
        (
            AnnaKarenina(strategy="anna_karenina", incorrect=2),
            Uniform(strategy="uniform", samples_per_prompt=1),
        ),
        {"a": [0], "b": [0], "c": [0]},
    ),
]


@pytest.mark.parametrize(("steps", "expected"), STEPS)
def test_each_strategy_keeps_the_rows_it_says(steps, expected):
    curated = curate(*rewarded(EXAMPLE), Mix(steps=steps), iteration=3)
    assert kept(curated) == expected
    assert curated.frame["iteration"].unique().to_list() == [3]


def test_mix_carries_tokens_logprobs_and_advantage_of_its_own_rows():
    curated = curate(*rewarded({"b": "+-", "a": "-"}), Mix(baseline=0.25), iteration=1)
    assert curated.frame.schema == tables.MIX.schema
    assert curated.frame.rows() == [
        ("a", 0, 1, -1.0, -1.25, [1, 2], [0], [-0.5], -0.5),
        ("b", 0, 1, 1.0, 0.75, [1, 2], [0], [-0.5], -0.5),
        ("b", 1, 1, -1.0, -1.25, [1, 2], [1], [-1.5], -1.5),
    ]
    assert curated.baseline == 0.25
    assert curated.positive_share == pytest.approx(1 / 3)
    assert curated.effective_positive_share == pytest.approx(0.75 / 3.25)


def test_waterfall_counts_the_rows_after_each_step():
    steps = (AnnaKarenina(strategy="anna_karenina"), Uniform(strategy="uniform"))
    curated = curate(*rewarded(EXAMPLE), Mix(steps=steps), iteration=1)
    assert list(curated.waterfall) == [
        ("rewards", 12),
        ("with a reward", 11),
        ("anna_karenina correct=1", 9),
        ("uniform", 9),
    ]


DEGENERATE = [
    ({"a": "+++", "b": "+"}, {"a": [0], "b": [0]}, 1.0),
    ({"a": "-i-"}, {"a": [0, 1, 2]}, 0.0),
    ({"a": "+"}, {"a": [0]}, 1.0),
    ({"a": "u", "b": "-"}, {"b": [0]}, 0.0),
]


@pytest.mark.parametrize(("prompts", "expected", "share"), DEGENERATE)
def test_one_sided_sets_are_cut_and_fail_their_check(prompts, expected, share):
    mix = Mix(steps=(AnnaKarenina(strategy="anna_karenina"),))
    curated = curate(*rewarded(prompts), mix, iteration=1)
    assert kept(curated) == expected
    assert curated.positive_share == curated.effective_positive_share == share
    assert [check.passed for check in checks(curated.frame, mix)] == [share == 1, share == 0]
    with pytest.raises(ToprError, match=r"mix\.effective_positive_share: 0\.2 cannot be reached"):
        curate(*rewarded(prompts), Mix(effective_positive_share=0.2), iteration=1)


@pytest.mark.parametrize("prompts", [{}, {"a": "uu", "b": "u"}])
def test_mix_without_rows_is_an_error_that_shows_where_they_went(prompts):
    with pytest.raises(ToprError, match=r"iteration 2 has no rows \(rewards: \d -> with a reward"):
        curate(*rewarded(prompts), KEEP_ALL, iteration=2)


@pytest.mark.parametrize(("prompts", "baseline"), [({"a": "++"}, 1.0), ({"a": "--"}, -1.0)])
def test_mix_whose_advantages_are_all_zero_is_an_error(prompts, baseline):
    with pytest.raises(ToprError, match=r"mix\.baseline: -?1 equals every reward"):
        curate(*rewarded(prompts), Mix(baseline=baseline), iteration=1)


def test_rewards_may_be_other_than_plus_and_minus_one():
    values = RewardValues(correct=2.0, incorrect=0.0, invalid=-1.0)
    curated = curate(
        *rewarded({"a": "+-i-"}, values), Mix(effective_positive_share=0.5), iteration=1
    )
    # c = 0.25: above 1.75, below 0.25 + 1.25 + 0.25
    assert curated.baseline == pytest.approx(0.25)
    assert curated.effective_positive_share == pytest.approx(0.5)
    assert curated.positive_share == 0.25


def test_rewards_and_solutions_must_be_of_the_same_samples():
    solutions, rewards = rewarded({"a": "+-"})
    with pytest.raises(ToprError, match=r"1 of 2 rewards have no solution.*'a', sample_index 1"):
        curate(solutions.head(1), rewards, KEEP_ALL, iteration=1)
    with pytest.raises(ToprError, match=r"1 of 2 solutions have no reward.*'a', sample_index 0"):
        curate(solutions, rewards.tail(1), KEEP_ALL, iteration=1)
    with pytest.raises(ToprError, match="stands twice"):
        curate(solutions, pl.concat([rewards, rewards]), KEEP_ALL, iteration=1)


def test_checks_count_advantages_and_name_their_key():
    mix = Mix(min_positives=2, min_negatives=0)
    table = curate(*rewarded({"a": "+-"}), mix, 1).frame
    positives, negatives = checks(table, mix)
    assert (positives.name, positives.passed) == ("min_positives", False)
    assert positives.figures == {"count": 1, "least": 2}
    assert "mix.min_positives wants 2 or more" in positives.message
    assert (negatives.name, negatives.passed) == ("min_negatives", True)


def test_baseline_of_minus_one_leaves_no_negatives_to_train_on():
    mix = Mix(baseline=-1)
    curated = curate(*rewarded({"a": "+--"}), mix, iteration=1)
    assert curated.effective_positive_share == 1
    assert [check.passed for check in checks(curated.frame, mix)] == [True, False]


PROMPTS = st.dictionaries(
    st.sampled_from("abcdef"), st.text("+-itu", min_size=1, max_size=6), min_size=1
).filter(lambda prompts: "+" in "".join(prompts.values()) and "-" in "".join(prompts.values()))


@settings(max_examples=30, deadline=None)
@given(PROMPTS, st.floats(0.01, 0.99), st.integers(1, 3), st.integers(0, 99))
def test_mix_invents_no_row_reaches_its_share_and_ignores_the_order_of_rows(
    prompts, target, correct, seed
):
    solutions, rewards = rewarded(prompts)
    mix = Mix(
        steps=(AnnaKarenina(strategy="anna_karenina", correct=correct),),
        effective_positive_share=target,
    )
    curated = curate(solutions, rewards, mix, iteration=1)
    frame = curated.frame
    assert frame.equals(frame.sort("iteration", "prompt_id", "sample_index"))
    assert frame.select("prompt_id", "sample_index").is_unique().all()
    assert frame.join(solutions, on=["prompt_id", "sample_index", "logprob"]).height == frame.height
    assert curated.effective_positive_share == pytest.approx(target, abs=1e-9)
    mass = frame.select(
        pl.col("advantage").filter(pl.col("advantage") > 0).sum() / pl.col("advantage").abs().sum()
    ).item()
    assert mass == pytest.approx(target, abs=1e-9)
    per_prompt = {prompt: letters.count("+") for prompt, letters in prompts.items()}
    for prompt, count in per_prompt.items():
        positives = frame.filter((pl.col("prompt_id") == prompt) & (pl.col("reward") > 0))
        assert positives.height == min(count, correct)
    shuffled = curate(
        solutions.sample(fraction=1, shuffle=True, seed=seed),
        rewards.sample(fraction=1, shuffle=True, seed=seed + 1),
        mix,
        iteration=1,
    )
    assert shuffled.frame.equals(frame)
    assert shuffled.baseline == curated.baseline
