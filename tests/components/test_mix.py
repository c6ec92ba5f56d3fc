"""What edits of the mix's keys launch, and a replay over iterations, with mocked models."""

import dagster as dg
import polars as pl
import pytest

from tests.components.test_assets import Toy, remade, toy  # noqa: F401
from topr_pipeline.components.graph import unroll

LIMIT = {"strategy": "limit", "rows": 8}
EDITS = [
    {"steps": [{"strategy": "anna_karenina"}]},
    {"effective_positive_share": 0.3},
    {"steps": [{"strategy": "uniform"}, LIMIT]},
    {"replay": {"iterations": 1}},
]


@pytest.mark.parametrize("edit", EDITS, ids=[next(iter(e)) for e in EDITS])
def test_an_edited_curation_key_samples_nothing_of_the_first_iteration(toy: Toy, edit):  # noqa: F811
    toy.run()
    toy.models.engines.clear()
    again = remade(toy.run(mix=edit))
    assert "iter_02/mix" in again
    assert again.isdisjoint({"prompts", "iter_00/checkpoint", "iter_00/eval_scores"})
    assert again.isdisjoint({"iter_01/solutions", "iter_01/rewards"})


REPLAY = {"replay": {"iterations": 1, "decay": 0.5}}


def test_a_replay_mixes_rows_of_the_iteration_before_with_their_own_log_mu(toy: Toy):  # noqa: F811
    result = toy.run(mix=REPLAY, iterations=3)
    assert result.success
    assert toy.models.calls.count("train") == 3
    first, third = toy.table("iter_01/mix"), toy.table("iter_03/mix")
    assert first["iteration"].unique().to_list() == [1]
    assert dict(third["iteration"].value_counts().iter_rows()) == {2: 12, 3: 24}
    old = third.filter(iteration=2)
    key = ["prompt_id", "sample_index", "token_ids", "logprobs", "logprob"]
    assert old.join(toy.table("iter_02/solutions"), on=key).height == 12


def test_a_replay_is_lineage_and_its_metadata_says_what_is_in_the_mix(toy: Toy):  # noqa: F811
    nodes = unroll("toy", toy.experiment(mix=REPLAY, iterations=3), toy.root)
    wanted = [f"toy/iter_0{k}/{stage}" for k in (2, 3) for stage in ("solutions", "rewards")]
    assert list(nodes["toy/iter_03/mix"].parents) == wanted
    assert list(nodes["toy/iter_01/mix"].parents) == [
        "toy/iter_01/solutions",
        "toy/iter_01/rewards",
    ]
    (found,) = [
        event.materialization.metadata
        for event in toy.run(mix=REPLAY).get_asset_materialization_events()
        if event.asset_key == dg.AssetKey(["toy", "iter_02", "mix"])
    ]
    composition = found["composition"]
    assert isinstance(composition, dg.TableMetadataValue)
    assert [(r.data["iteration"], r.data["rows"]) for r in composition.records] == [
        (1, 12),
        (2, 24),
    ]
    assert found["dagster/row_count"].value == 36
    assert all("image/png" in str(found[plot].value) for plot in ("waterfall_plot", "solve_rates"))
    examples = found["examples"]
    assert isinstance(examples, dg.TableMetadataValue)
    assert len(examples.records) == 5
    assert all("The answer is" in str(r.data["text"]) for r in examples.records)


def test_the_seed_counts_for_a_mix_only_where_something_is_drawn(toy: Toy):  # noqa: F811
    def version(**keys) -> str:
        return unroll("toy", toy.experiment(**keys), toy.root)["toy/iter_01/mix"].code_version

    assert version() == version(seed=1)
    for mix in (REPLAY, {"steps": [LIMIT]}):
        assert version(mix=mix) != version(mix=mix, seed=1)
    assert version() == version(mix={"memory_gib": 1})


def test_the_trained_policy_sees_the_whole_mix(toy: Toy, monkeypatch):  # noqa: F811
    seen: list[pl.DataFrame] = []
    train = toy.models.train
    monkeypatch.setattr(
        toy.models,
        "train",
        lambda job, *a: (seen.append(pl.read_parquet(job.mix)), train(job, *a))[1],
    )
    toy.run(mix=REPLAY)
    assert [frame["iteration"].max() for frame in seen] == [1, 2]
    assert seen[1].height == 36
