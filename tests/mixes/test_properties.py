"""What holds for any rewards, in whatever order and pieces they come."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.mixes.conftest import Mixed, Tables, mixed, rewarded
from topr_pipeline.experiment import Mix
from topr_pipeline.mixes import rows, write

PROMPTS = st.dictionaries(
    st.sampled_from([f"prompt {c}" for c in "abcde"]),
    st.text("+-itu", min_size=1, max_size=6),
    min_size=1,
).filter(lambda prompts: "+" in "".join(prompts.values()) and "-" in "".join(prompts.values()))

QUERY = (
    "SELECT sample_index, prompt_id FROM rows QUALIFY ntile(3) OVER (ORDER BY reward, prompt_id,\
 sample_index) < 3"
)
STEP = st.one_of(
    st.builds(lambda k, n: {"strategy": "anna_karenina", "correct": k, "incorrect": n},
              st.integers(1, 3), st.none() | st.integers(1, 3)),
    st.builds(lambda n: {"strategy": "uniform", "samples_per_prompt": n}, st.integers(1, 5)),
    st.builds(lambda n: {"strategy": "limit", "rows": n}, st.integers(1, 30)),
    st.builds(lambda by, n: {"strategy": "dedupe", "by": by, "keep": n},
              st.sampled_from(["completion", "wording", "answer"]), st.integers(1, 3)),
    st.builds(lambda n, over: {"strategy": "length", "max_tokens": n, "over": over},
              st.integers(1, 6), st.sampled_from(["cap", "drop"])),
    st.just({"strategy": "outcome", "outcomes": ["correct", "incorrect", "truncated"]}),
    st.just({"strategy": "difficulty", "solve_rate": [0.1, 0.9]}),
    st.just({"strategy": "sql", "sql": QUERY}),
)  # fmt: skip
QUICK = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))


@contextmanager
def in_pieces(memory_gib: float) -> Iterator[dict[str, float]]:
    """Chunks of nine rows, row groups of three, and the memory as a key of the mix."""
    with patch.object(rows, "CHUNK", 9), patch.object(write, "GROUP_BYTES", 250):
        yield {"memory_gib": memory_gib}


def shuffled(tables: Tables, seed: int) -> Tables:
    """Each table in an order of its own."""
    solutions, rewards = (
        table.sample(fraction=1, shuffle=True, seed=seed + i) for i, table in enumerate(tables)
    )
    return solutions, rewards


def attempt(
    tables: dict[int, Tables], mix: Mix, further: Mapping[int, Tables] = MappingProxyType({})
) -> Mixed | str:
    try:
        return mixed(tables, mix, further=further)
    except ValueError as error:
        return str(error)


@QUICK
@given(PROMPTS, st.lists(STEP, max_size=3), st.integers(0, 99))
def test_a_mix_depends_on_no_order_chunk_or_memory_and_makes_up_no_row(prompts, steps, seed):
    said = {"steps": steps, "baseline": 0.25}
    tables = {2: rewarded(prompts)}
    whole = attempt(tables, Mix.model_validate(said))
    mixes = [attempt({2: shuffled(tables[2], seed)}, Mix.model_validate(said))]
    for memory, order in ((4e-6, False), (4.0, False), (4e-6, True)):
        with in_pieces(memory) as limits:
            pair = shuffled(tables[2], seed) if order else tables[2]
            mixes.append(attempt({2: pair}, Mix.model_validate(said | limits)))
    if isinstance(whole, str):
        assert mixes == [whole] * 4
        return
    assert whole.frame.select("prompt_id", "sample_index").is_unique().all()
    assert whole.frame.equals(whole.frame.sort("iteration", "prompt_id", "sample_index"))
    assert whole.rows <= {(2, *key) for key in tables[2][0].select(rows.KEY).rows()}
    made = [other for other in mixes if isinstance(other, Mixed)]
    assert len(made) == 4
    assert all(other.frame.equals(whole.frame) for other in made)
    assert all(other.curated == whole.curated for other in made)
    assert made[0].content == whole.content
    assert len({other.content for other in made[1:]}) == 1


@QUICK
@given(PROMPTS, st.floats(0.01, 0.99), st.integers(1, 3))
def test_the_written_advantages_reach_the_effective_share(prompts, target, correct):
    step = {"strategy": "anna_karenina", "correct": correct}
    mix = Mix.model_validate({"steps": [step], "effective_positive_share": target})
    made = mixed({1: rewarded(prompts)}, mix)
    above = pl.col("advantage").filter(pl.col("advantage") > 0).sum()
    assert made.frame.select(above / pl.col("advantage").abs().sum()).item() == pytest.approx(
        target, abs=1e-9
    )
    assert made.curated.effective_positive_share == pytest.approx(target, abs=1e-9)
    for prompt, letters in prompts.items():
        of_prompt = made.frame.filter(prompt_id=prompt)["reward"]
        assert (of_prompt > 0).sum() == min(letters.count("+"), correct)
        assert (of_prompt < 0).sum() == sum(letters.count(letter) for letter in "-it")


@QUICK
@given(PROMPTS, PROMPTS, st.sampled_from(["none", "advantage", "unsolved"]), st.integers(0, 9))
def test_a_replay_depends_on_no_order_chunk_or_memory(new, old, priority, seed):
    said = {"replay": {"iterations": 1, "priority": priority, "decay": 0.7}}
    tables = {1: rewarded(old), 2: rewarded(new)}
    whole = mixed(tables, Mix.model_validate(said), seed)
    with in_pieces(4e-6) as limits:
        cut_up = mixed(
            {at: shuffled(pair, seed) for at, pair in tables.items()},
            Mix.model_validate(said | limits),
            seed,
        )
    assert cut_up.frame.equals(whole.frame)
    fresh = whole.frame.filter(iteration=2)
    assert fresh.equals(mixed({2: tables[2]}, Mix()).frame)
    assert whole.frame.height - fresh.height <= fresh.height


@QUICK
@given(PROMPTS, st.lists(STEP, max_size=2), st.integers(0, 6), st.integers(0, 99))
def test_further_samples_in_tables_of_their_own_are_as_those_of_one_table(
    prompts, steps, first, seed
):
    mix = Mix.model_validate({"steps": steps, "replay": {"iterations": 1, "priority": "unsolved"}})
    old, new = rewarded({"prompt a": "+-"}), rewarded(prompts)
    whole = attempt({1: old, 2: new}, mix)
    begin = pl.col("sample_index") < first
    solutions, rewards = new
    base = {1: old, 2: (solutions.filter(begin), rewards.filter(begin))}
    more = {2: shuffled((solutions.filter(~begin), rewards.filter(~begin)), seed)}
    for memory in (4.0, 4e-6):
        with in_pieces(memory) as limits:
            apart = attempt(base, mix.model_copy(update=limits), more)
        if isinstance(whole, str) or isinstance(apart, str):
            assert apart == whole
        else:
            assert apart.frame.equals(whole.frame)
            assert apart.curated == whole.curated
    apart = attempt(base, mix, more)
    if isinstance(apart, Mixed):
        assert isinstance(whole, Mixed)
        assert apart.content == whole.content


def test_whole_tables_and_stretches_of_ordered_ones_are_read_in_place(tmp_path):
    tables = rewarded({name: "+-+-" for name in "hgfedcba"})
    for table, name in zip((*tables, shuffled(tables, 0)[1]), "sro", strict=True):
        table.write_parquet(tmp_path / f"{name}.parquet")
    solutions, rewards, other = (tmp_path / f"{name}.parquet" for name in "sro")
    apart = tmp_path / "apart"
    assert rows.rewarded(1, solutions, rewards, apart, 1 << 30).heights == ()
    with patch.object(rows, "CHUNK", 9):
        assert rows.rewarded(1, solutions, rewards, apart, 1 << 30).heights == [12, 12, 8]
        assert not apart.exists()
        found = rows.rewarded(1, solutions, other, apart, 1 << 30)
        assert found.heights == ()
        assert sum(frame.height for frame in found.narrow([])) == 32
        assert all(frame["prompt_id"].rle().len() <= 8 for frame in found.narrow([]))
