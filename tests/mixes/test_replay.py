from collections.abc import Mapping

import polars as pl
import pytest

from tests.mixes.conftest import Mixed, mixed, rewarded
from topr_pipeline.curation import Replay
from topr_pipeline.experiment import Mix
from topr_pipeline.mixes.replay import WEIGHT, quotas, weights

QUOTAS = [
    # fresh, rows by age, decay, max_share -> rows drawn by age
    (100, {1: 100, 2: 100}, 0.5, 0.9, {1: 50, 2: 25}),
    (100, {1: 10, 2: 100}, 0.5, 0.9, {1: 10, 2: 25}),  # fewer than there should be
    (100, {1: 100, 2: 100}, 1.0, 0.5, {1: 50, 2: 50}),  # 200 would be two thirds of the mix
    (100, {1: 100}, 1.0, 0.2, {1: 25}),
    (90, {1: 100}, 1.0, 0.1, {1: 10}),
    (3, {1: 0, 2: 7}, 0.1, 0.5, {1: 0, 2: 0}),
]


@pytest.mark.parametrize(("fresh", "available", "decay", "share", "expected"), QUOTAS)
def test_old_rows_decay_with_age_up_to_their_largest_share(
    fresh, available, decay, share, expected
):
    replay = Replay(iterations=2, decay=decay, max_share=share)
    assert quotas(fresh, available, replay) == expected


def replayed(iterations: Mapping[int, Mapping[str, str]], seed: int = 0, **replay) -> Mixed:
    tables = {at: rewarded(prompts) for at, prompts in iterations.items()}
    said = {"replay": {"iterations": 5, **replay}}
    return mixed(tables, Mix.model_validate(said), seed)


def test_fresh_rows_are_those_of_a_mix_without_replay_and_old_ones_keep_their_log_mu():
    iterations = {1: {"a": "+-+-"}, 2: {"a": "-+", "b": "+-"}}
    made = replayed(iterations, decay=0.5)
    fresh, old = made.frame.filter(iteration=2), made.frame.filter(iteration=1)
    assert fresh.equals(mixed({2: rewarded(iterations[2])}, Mix()).frame)
    assert old.height == 2
    solutions = rewarded(iterations[1])[0]
    key = ["prompt_id", "sample_index", "logprobs", "logprob", "token_ids"]
    assert old.join(solutions, on=key).height == 2
    assert [c["rows"] for c in made.curated.composition] == [2, 4]
    assert made.curated.waterfall[-1] == {
        "step": "and of iteration 1", "rows": 2, "prompts": 1,
        "positives": (old["reward"] > 0).sum(),
    }  # fmt: skip


def test_each_mix_draws_others_and_the_same_ones_again():
    iterations = {1: {name: "+-" * 10 for name in "abc"}, 2: {"d": "+-" * 10}}
    rows = [replayed(iterations, seed, decay=1).rows for seed in (0, 0, 1)]
    assert rows[0] == rows[1] != rows[2]
    later = replayed({1: iterations[1], 3: iterations[2]}, decay=1)
    assert {r for r in later.rows if r[0] == 1} != {r for r in rows[0] if r[0] == 1}


def test_a_reward_that_differs_from_its_mean_by_rounding_alone_is_no_surprise():
    rows = pl.DataFrame({"prompt": [0, 0, 0, 1, 1], "reward": [0.1, 0.1, 0.1, 0.1, 0.3]})
    replay = Replay(iterations=1, priority="advantage")
    assert weights(rows, replay)[WEIGHT].to_list() == [0, 0, 0, *[pytest.approx(0.1)] * 2]


def test_rows_whose_reward_was_a_surprise_come_first_by_advantage():
    # Advantages within the prompt: a 3/4 for the one right answer and 1/4, b 0.
    iterations = {1: {"a": "+---", "b": "++++"}, 2: {"c": "+-+-+-+-"}}
    rows = [replayed(iterations, s, priority="advantage", decay=0.5).rows for s in range(9)]
    assert all({(1, "a", i) for i in range(4)} <= kept for kept in rows)
    often = [replayed(iterations, s, priority="advantage", decay=0.13).rows for s in range(40)]
    assert sum((1, "a", 0) in kept for kept in often) > 12  # 1/2 of the draws, not 1/8


def test_prompts_that_a_newer_iteration_solved_come_last_by_unsolved():
    iterations = {
        1: {"solved": "----", "still not": "+---"},
        2: {"solved": "++++"},
        3: {"new": "+-" * 4},
    }
    made = replayed(iterations, priority="unsolved", decay=0.5)
    old = {key for key in made.rows if key[0] == 1}
    assert len(old) == 2  # 8 fresh ones * 0.5^2
    assert {prompt for _, prompt, _ in old} == {"still not"}


def test_an_iteration_whose_steps_leave_nothing_is_replayed_as_nothing():
    made = replayed({1: {"a": "uu"}, 2: {"a": "+-"}})
    assert made.rows == {(2, "a", 0), (2, "a", 1)}


@pytest.mark.parametrize("priority", ["none", "advantage", "unsolved"])
def test_the_effective_share_is_that_of_fresh_and_old_rows_together(priority):
    tables = {1: rewarded({"a": "+---"}), 2: rewarded({"b": "++-"})}
    said = {
        "replay": {"iterations": 1, "decay": 1, "priority": priority},
        "effective_positive_share": 0.2,
    }
    made = mixed(tables, Mix.model_validate(said))
    assert made.frame.height == 6
    assert made.curated.effective_positive_share == pytest.approx(0.2, abs=1e-9)
