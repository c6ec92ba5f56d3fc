"""Which prompts get further samples, and how these come out of the store."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.mixes.conftest import rewarded
from tests.solutions.test_store import asked, prompts, shards
from topr_pipeline.experiment import TopUp
from topr_pipeline.solutions import Asked, forget, further_samples, sample, sample_part
from topr_pipeline.tables import SOLUTIONS
from topr_pipeline.testing import FakeEngine

# ------------------------------------------------------------------------------------- planning


def planned(letters: dict[str, str], **keys: Any) -> list[int]:
    """How many more samples each prompt gets, of {prompt: one letter per sample}."""
    return further_samples(prompts(list(letters)), rewarded(letters)[1], TopUp(**keys)).tolist()


FOUR = {"a": "----", "b": "+---", "c": "++--", "d": "++++"}
PLANS = [
    ({"samples": 3}, [3, 0, 0, 0]),
    ({"correct": 2, "samples": 3}, [3, 3, 0, 0]),
    ({"correct": 9, "samples": 3}, [3, 3, 3, 3]),
    ({"correct": 0, "incorrect": 1, "samples": 3}, [0, 0, 0, 3]),
    ({"incorrect": 1, "samples": 3}, [3, 0, 0, 3]),
    ({"correct": 0, "incorrect": 3, "samples": 3}, [0, 0, 3, 3]),
    ({"correct": 3, "samples": 4, "budget": 12}, [4, 4, 4, 0]),
    ({"correct": 3, "samples": 4, "budget": 99}, [4, 4, 4, 0]),
    ({"correct": 3, "samples": 4, "budget": 11}, [4, 4, 3, 0]),
    ({"correct": 3, "samples": 4, "budget": 5}, [2, 2, 1, 0]),
    ({"correct": 3, "samples": 4, "budget": 1}, [1, 0, 0, 0]),
]


@pytest.mark.parametrize(("keys", "more"), PLANS, ids=[str(p[0]) for p in PLANS])
def test_prompts_that_lack_some_share_the_budget_in_turn(keys: dict, more: list[int]):
    assert planned(FOUR, **keys) == more


OUTCOMES = [
    ({"a": "iitt"}, {"correct": 1, "samples": 2}, [2]),
    ({"a": "+itt"}, {"correct": 0, "incorrect": 3, "samples": 2}, [0]),
    ({"a": "uuuu", "b": "uu--"}, {"samples": 2}, [0, 2]),
    ({"a": "++uu"}, {"incorrect": 1, "samples": 2}, [2]),
    ({}, {}, []),
]


@pytest.mark.parametrize(("letters", "keys", "more"), OUTCOMES, ids=[str(o[0]) for o in OUTCOMES])
def test_others_than_correct_are_incorrect_and_what_cannot_be_verified_is_neither(
    letters, keys, more
):
    assert planned(letters, **keys) == more


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.text("+-itu", min_size=1, max_size=5)),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, 5),
    st.integers(1, 50),
    st.randoms(),
)
def test_a_larger_budget_only_adds_and_the_order_of_the_rewards_is_nothing(
    letters, correct, incorrect, samples, budget, random
):
    asked_for, rewards = prompts(list(letters)), rewarded(letters)[1]
    order = random.sample(range(rewards.height), rewards.height)
    keys = {"correct": correct, "incorrect": incorrect, "samples": samples}
    less, more, whole = (
        further_samples(asked_for, rewards[order], TopUp(**keys, budget=b))
        for b in (budget, budget + 1, None)
    )
    assert less.sum() == min(budget, whole.sum())
    assert (less <= more).all()
    assert (more <= whole).all()
    assert set(whole.tolist()) <= {0, samples}
    assert np.ptp(less[whole > 0]) <= 1 if (whole > 0).any() else not less.any()
    assert (
        less.tolist() == further_samples(asked_for, rewards, TopUp(**keys, budget=budget)).tolist()
    )


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"correct": 0}, "ask for nothing"),
        ({"samples": 0}, "samples\n.*greater than or equal to 1"),
        ({"budget": 0}, "budget\n.*greater than or equal to 1"),
        ({"correct": True}, "not true or false"),
        ({"rounds": 2}, "unknown key 'rounds'; accepted: correct, incorrect, samples, budget"),
    ],
)
def test_keys_that_make_no_sense_are_refused(keys: dict, what: str):
    with pytest.raises(ValidationError, match=what):
        TopUp(**keys)


# ------------------------------------------------------------------------------------- sampling


def said(prompt: str, i: int) -> str:
    return f"{prompt} The answer is {i}"


MORE = {"e": 3, "b": 0, "d": 1, "a": 9, "c": 2}


def further(folder: Path, more: dict[str, int] | None = None, **keys: Any) -> Asked:
    counts = {name: n for name, n in (more or MORE).items() if n}
    first = asked(folder, list(counts), **keys)
    return Asked(
        first.prompts,
        first.sampling,
        first.policy,
        "v1",
        first.store,
        7,
        np.array([*counts.values()]),
    )


def topped_up(folder: Path, engine: FakeEngine, more: dict[str, int] | None = None, **keys: Any):
    made = sample(further(folder, more, **keys), engine, folder / "more.parquet")
    return SOLUTIONS.read(made.path)


def test_further_samples_follow_the_first_in_one_set(tmp_path: Path):
    sample(asked(tmp_path), FakeEngine(said), tmp_path / "out.parquet")
    first, engine = shards(tmp_path), FakeEngine(said)
    table = topped_up(tmp_path, engine)
    wanted = [(name, 4 + i) for name, n in MORE.items() for i in range(n)]
    assert table.select("prompt_id", "sample_index").rows() == wanted
    assert table["text"].to_list() == [said(f"How much is {p} ?", i) for p, i in wanted]
    assert engine.generated == len(wanted)
    assert first.items() <= shards(tmp_path).items()
    assert len(list((tmp_path / "samples").iterdir())) == 1
    again = FakeEngine(said)
    assert topped_up(tmp_path, again).equals(table)
    assert again.started == 0


def test_more_of_them_keep_those_that_were_drawn(tmp_path: Path):
    before = topped_up(tmp_path, FakeEngine())
    engine = FakeEngine()
    now = topped_up(tmp_path, engine, {name: n + 1 for name, n in MORE.items()})
    assert engine.generated == 5
    assert before.join(now, on=["prompt_id", "sample_index", "text"]).height == before.height
    assert topped_up(tmp_path, FakeEngine()).equals(before)


def test_more_first_samples_take_over_what_a_top_up_drew(tmp_path: Path):
    sample(asked(tmp_path), FakeEngine(said), tmp_path / "out.parquet")
    topped_up(tmp_path, FakeEngine(said), dict.fromkeys("ebdac", 2))
    engine = FakeEngine(said)
    sample(asked(tmp_path, samples_per_prompt=7), engine, tmp_path / "out.parquet")
    assert engine.generated == 5
    fewer = SOLUTIONS.read(tmp_path / "out.parquet")
    assert fewer["text"].to_list() == [
        said(f"How much is {p} ?", i) for p in "ebdac" for i in range(7)
    ]


@pytest.mark.parametrize("fail_after", range(0, 15, 3))
def test_a_top_up_that_was_cut_off_ends_as_one_that_was_not(tmp_path: Path, fail_after: int):
    whole = topped_up(tmp_path / "whole", FakeEngine())
    with pytest.raises(RuntimeError, match="as told"):
        topped_up(tmp_path / "cut", FakeEngine(fail_after=fail_after))
    engine = FakeEngine()
    assert topped_up(tmp_path / "cut", engine).equals(whole)
    assert engine.generated == 15 - fail_after // 6 * 6  # shards of six are kept
    assert shards(tmp_path / "cut") == shards(tmp_path / "whole")


def test_parts_of_a_top_up_leave_the_store_of_one(tmp_path: Path):
    topped_up(tmp_path / "whole", FakeEngine())
    for part in (2, 0, 1):
        sample_part(further(tmp_path / "parts"), FakeEngine(), part, 3)
    assert shards(tmp_path / "parts") == shards(tmp_path / "whole")


def test_samples_come_in_one_request_for_a_prompt(tmp_path: Path):
    class Noting(FakeEngine):
        def generate(self, batch, seed):
            calls.extend((r.prompt, r.n, r.first) for r in batch)
            return super().generate(batch, seed)

    calls: list[tuple[str, int, int]] = []
    topped_up(tmp_path, Noting(), {"e": 3, "d": 1, "c": 1}, shard_size=99, batch_size=99)
    assert calls == [(f"How much is {p} ?", n, 4) for p, n in (("e", 3), ("d", 1), ("c", 1))]


def test_nothing_lacking_is_an_empty_table_and_no_engine(tmp_path: Path):
    engine = FakeEngine()
    nothing = asked(tmp_path, [])
    none = Asked(
        nothing.prompts, nothing.sampling, Path("p"), "v1", nothing.store, 7, np.array([], int)
    )
    assert sample(none, engine, tmp_path / "more.parquet").rows == 0
    assert SOLUTIONS.read(tmp_path / "more.parquet").equals(SOLUTIONS.empty())
    assert engine.started == 0


def test_further_samples_are_forgotten_without_the_first(tmp_path: Path):
    sample(asked(tmp_path), FakeEngine(), tmp_path / "out.parquet")
    first = shards(tmp_path)
    topped_up(tmp_path, FakeEngine())
    forget(further(tmp_path).store / further(tmp_path).key, 4)
    assert shards(tmp_path) == first
