"""`top_up` with mocked models: its lineage, what it samples, and what the mix is made of."""

from typing import Any

import dagster as dg
import polars as pl
import pytest

from tests.components.test_assets import ITERATION, Toy, failure, remade, toy  # noqa: F401
from topr_pipeline.components.clean import clean
from topr_pipeline.components.graph import unroll
from topr_pipeline.components.topr_experiment import FORCE_TAG
from topr_pipeline.export import export
from topr_pipeline.views import query

TOP_UP = {"samples": 6}
KEY = ["prompt_id", "sample_index"]
BOTH = {"iter_01/top_up_solutions", "iter_01/top_up_rewards"}


def late(prompt: str, i: int) -> str:
    """Prompt `n + 1 =`: right from sample n + 2 on, so that n = 0 and 1 need no more than four."""
    n = int(prompt.split(maxsplit=1)[0])
    return f"The answer is {n + 1 if i >= n + 2 else 99}"


@pytest.fixture
def late_toy(toy: Toy) -> Toy:  # noqa: F811
    toy.models.reply = late
    return toy


def sampled(toy: Toy) -> list[int]:  # noqa: F811
    """How many samples each engine drew that was started."""
    return [e.generated for e in toy.models.engines if e.started]


def without_texts(table: pl.DataFrame) -> pl.DataFrame:
    return table.select(KEY).sort(KEY)


def test_prompts_without_a_correct_sample_get_more_and_the_mix_sees_both(late_toy: Toy):
    result = late_toy.run(top_up=TOP_UP, iterations=1)
    assert result.success
    first, more = (late_toy.table(f"iter_01/{s}solutions") for s in ("", "top_up_"))
    assert first.height == 6 * 4
    assert more.height == 4 * 6  # of 2 + 1 =, 3 + 1 =, 4 + 1 = and 5 + 1 =
    assert more["sample_index"].unique().sort().to_list() == list(range(4, 10))
    assert more["fingerprint"].unique().to_list() == first["fingerprint"].unique().to_list()
    assert more["policy_version"].unique().to_list() == first["policy_version"].unique().to_list()
    rewards = late_toy.table("iter_01/top_up_rewards")
    assert without_texts(rewards).equals(without_texts(more))
    assert rewards.group_by("prompt_id").agg((pl.col("outcome") == "correct").sum())[
        "outcome"
    ].sort().to_list() == [3, 4, 5, 6]
    mix = late_toy.table("iter_01/mix")
    assert without_texts(mix).equals(without_texts(pl.concat([first, more])))
    logprobs = pl.concat([first, more]).select(*KEY, "logprobs", "token_ids")
    assert mix.join(logprobs, on=[*KEY, "logprobs", "token_ids"]).height == mix.height


def test_anna_karenina_then_has_a_correct_sample_of_every_prompt(late_toy: Toy):
    mix = {"steps": [{"strategy": "anna_karenina", "incorrect": 2}]}
    late_toy.run(mix=mix, iterations=1)
    assert (late_toy.table("iter_01/mix")["reward"] > 0).sum() == 2
    late_toy.run(mix=mix, iterations=1, top_up=TOP_UP)
    assert (late_toy.table("iter_01/mix")["reward"] > 0).sum() == 6


def test_a_top_up_is_lineage_and_only_there_where_the_yaml_asks(late_toy: Toy):
    plain = unroll("toy", late_toy.experiment(), late_toy.root)
    assert not any("top_up" in key for key in plain)
    replay = {"replay": {"iterations": 1}}
    nodes = unroll("toy", late_toy.experiment(top_up=TOP_UP, mix=replay), late_toy.root)
    it = "toy/iter_02"
    assert nodes[f"{it}/top_up_solutions"].parents == (
        "toy/prompts",
        "toy/iter_01/checkpoint",
        f"{it}/rewards",
    )
    assert nodes[f"{it}/top_up_rewards"].parents == ("toy/prompts", f"{it}/top_up_solutions")
    assert nodes[f"{it}/mix"].parents == tuple(
        f"toy/iter_0{k}/{stage}"
        for k in (1, 2)
        for stage in ("solutions", "rewards", "top_up_solutions", "top_up_rewards")
    )
    assert plain["toy/iter_01/solutions"] == nodes["toy/iter_01/solutions"]
    assert plain["toy/iter_01/rewards"] == nodes["toy/iter_01/rewards"]


CHANGES: list[tuple[dict[str, Any], int]] = [
    ({"top_up": {"samples": 8}}, 4 * 2),
    ({"top_up": {"samples": 6, "correct": 2}}, 6),  # of 1 + 1 = too, which has one correct
    ({"top_up": {"samples": 6, "budget": 11}}, 0),
    ({"top_up": {"samples": 6}, "rewards": {"values": {"incorrect": -2}}}, 0),
]


@pytest.mark.parametrize(("change", "drawn"), CHANGES, ids=[str(c[0]) for c in CHANGES])
def test_an_edit_of_it_draws_what_is_new_and_no_first_sample(late_toy: Toy, change, drawn):
    late_toy.run(top_up=TOP_UP, iterations=1)
    late_toy.models.engines.clear()
    again = remade(late_toy.run(iterations=1, **change))
    assert "iter_01/solutions" not in again
    assert again >= BOTH
    assert late_toy.models.engines[0].generated == drawn


def test_a_larger_budget_draws_only_the_extra(late_toy: Toy):
    late_toy.run(top_up={"samples": 6, "budget": 7}, iterations=1)
    before = late_toy.table("iter_01/top_up_solutions")
    assert sorted(before.group_by("prompt_id").len()["len"]) == [1, 2, 2, 2]
    late_toy.models.engines.clear()
    late_toy.run(top_up={"samples": 6, "budget": 17}, iterations=1)
    now = late_toy.table("iter_01/top_up_solutions")
    assert late_toy.models.engines[0].generated == 10
    assert now.join(before, on=[*KEY, "text", "logprob"]).height == before.height == 7
    assert now.height == 17


def test_switching_it_on_and_off_draws_no_first_sample_again(late_toy: Toy):
    off = late_toy.run(iterations=1)
    assert off.success
    mix = late_toy.table("iter_01/mix")
    late_toy.models.engines.clear()
    again = remade(late_toy.run(top_up=TOP_UP, iterations=1))
    after = {f"iter_01/{s}" for s in ITERATION[2:]}
    assert again == BOTH | after | {"report"}
    assert late_toy.models.engines[0].generated == 24
    assert remade(late_toy.run(iterations=1)) == after | {"report"}
    assert late_toy.table("iter_01/mix").equals(mix)


def test_nothing_lacking_starts_no_engine_and_leaves_the_mix_as_it_is(toy: Toy):  # noqa: F811
    toy.run(iterations=1)
    mix = toy.table("iter_01/mix")
    toy.models.engines.clear()
    result = toy.run(top_up=TOP_UP, iterations=1)
    assert result.success
    assert "iter_01/checkpoint" not in remade(result)
    assert sampled(toy) == []
    assert toy.table("iter_01/top_up_rewards").is_empty()
    assert toy.table("iter_01/mix").equals(mix)


def test_an_engine_that_goes_away_in_a_top_up_loses_no_finished_shard(late_toy: Toy):
    sampling = {"engine": "fake", "samples_per_prompt": 4, "shard_size": 6, "batch_size": 3}
    changes: dict[str, Any] = {"sampling": sampling, "iterations": 1}
    late_toy.run(**changes)
    late_toy.models.fail_after = 16
    assert not late_toy.run(**changes, top_up=TOP_UP).success
    late_toy.models.fail_after = None
    late_toy.models.engines.clear()
    assert late_toy.run(**changes, top_up=TOP_UP).success
    assert late_toy.models.engines[0].generated == 24 - 12


def test_a_forced_top_up_draws_only_the_further_samples_again(late_toy: Toy):
    late_toy.run(top_up=TOP_UP, iterations=1)
    late_toy.models.engines.clear()
    forced = {FORCE_TAG: "toy/iter_01/top_up_solutions"}
    assert remade(late_toy.run(forced, top_up=TOP_UP, iterations=1)) == {"iter_01/top_up_solutions"}
    assert sampled(late_toy) == [24]
    late_toy.models.engines.clear()
    late_toy.run(top_up=TOP_UP, iterations=1, sampling={"engine": "fake", "samples_per_prompt": 5})
    assert late_toy.models.engines[0].generated == 2  # of the two that were not topped up


def test_the_metadata_says_how_many_prompts_have_enough_now(late_toy: Toy):
    result = late_toy.run(top_up={"samples": 2}, iterations=1)
    found = {
        e.asset_key.path[-1]: e.materialization.metadata
        for e in result.get_asset_materialization_events()
        if e.asset_key
    }
    assert found["top_up_solutions"]["prompts"].value == 4
    assert found["top_up_solutions"]["headline"].value == "8 samples of 4 prompts"
    examples = found["top_up_solutions"]["examples"]
    assert isinstance(examples, dg.TableMetadataValue)
    assert len(examples.records) == 4
    assert found["top_up_rewards"]["headline"].value == "2 of 4 prompts have enough now"
    assert found["top_up_rewards"]["prompts_lacking_still"].value == 2
    assert found["rewards"]["correct"].value == 3 / 24  # of the first samples alone
    rows = found["mix"]["examples"]
    assert isinstance(rows, dg.TableMetadataValue)
    assert all("The answer is" in str(r.data["text"]) for r in rows.records)


def test_logprobs_are_checked_of_the_further_samples_too(late_toy: Toy):
    checks = late_toy.run(top_up=TOP_UP, iterations=1).get_asset_check_evaluations()
    names = {(c.asset_key.path[-1], c.check_name) for c in checks if "top_up" in str(c.asset_key)}
    assert names == {
        ("top_up_solutions", "logprob_agreement"),
        ("top_up_rewards", "unverifiable_share"),
    }


def test_steps_that_share_it_leave_the_samples_of_one(late_toy: Toy):
    sampling = {"engine": "fake", "samples_per_prompt": 4, "shard_size": 4, "batch_size": 4}
    late_toy.run(top_up=TOP_UP, sampling=sampling, iterations=1)
    whole = late_toy.table("iter_01/top_up_solutions")
    for path in late_toy.root.glob("data/toy/iter_01/*"):
        if path.is_file():
            path.unlink()
    for path in late_toy.root.glob("data/toy/samples/*/*"):
        path.unlink()
    late_toy.models.engines.clear()
    result = late_toy.run(top_up=TOP_UP, sampling={**sampling, "shards": 3}, iterations=1)
    assert result.success
    assert late_toy.table("iter_01/top_up_solutions").equals(whole)
    steps = [e.step_key or "" for e in result.all_events if e.event_type_value == "STEP_SUCCESS"]
    parts = [s for s in steps if s.startswith("toy__iter_01__top_up_solutions.part_")]
    assert len(parts) == 3
    assert sorted(sampled(late_toy)) == sorted([8] * 6 + [16])  # 24 + 24 in parts, an evaluation


def test_cleaning_keeps_what_the_top_up_uses(late_toy: Toy):
    late_toy.run(top_up=TOP_UP, iterations=1)
    experiment = late_toy.experiment(top_up=TOP_UP, iterations=1)
    nodes = unroll("toy", experiment, late_toy.root)
    assert clean("toy", nodes, experiment, late_toy.root / "data", dry_run=False) == []


def test_a_replay_takes_further_samples_of_the_iteration_before(late_toy: Toy):
    assert late_toy.run(top_up=TOP_UP, mix={"replay": {"iterations": 1, "decay": 1.0}}).success
    old = late_toy.table("iter_02/mix").filter(iteration=1)
    assert (old["sample_index"] >= 4).any()
    assert old.join(late_toy.table("iter_01/top_up_solutions"), on=[*KEY, "logprobs"]).height > 0


def test_views_hold_first_and_further_samples_apart(late_toy: Toy):
    late_toy.run(top_up=TOP_UP, iterations=1)
    counts = [
        query(f"SELECT count(*), max(sample_index) FROM {view}", late_toy.root / "data").row(0)
        for view in ("solutions", "rewards", "top_up_solutions", "top_up_rewards")
    ]
    assert counts == [(24, 3), (24, 3), (24, 9), (24, 9)]


def test_an_exported_mix_has_the_further_samples(late_toy: Toy):
    late_toy.run(top_up=TOP_UP, iterations=1)
    experiment = late_toy.experiment(top_up=TOP_UP, iterations=1)
    data, out = late_toy.root / "data", late_toy.root / "out"
    assert export("toy", experiment, 1, "mix", data, out)["data/train.parquet"] == 48
    assert "top_up:" in (out / "README.md").read_text()
    more = late_toy.root / "more"
    assert export("toy", experiment, 1, "solutions", data, more)["data/train.parquet"] == 24
    # A top-up that is no longer asked for lies there still.
    sampling = {"engine": "fake", "samples_per_prompt": 6}
    late_toy.run(iterations=1, sampling=sampling)
    again = late_toy.root / "again"
    now = late_toy.experiment(iterations=1, sampling=sampling)
    assert export("toy", now, 1, "mix", data, again)["data/train.parquet"] == 36
