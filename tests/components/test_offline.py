"""Iterations that train on solutions which are there already, with mocked models."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest
from pydantic import ValidationError

from tests.components.test_assets import failure, remade
from topr_pipeline.components import experiment_assets
from topr_pipeline.components.graph import unroll
from topr_pipeline.components.plan import plan
from topr_pipeline.components.topr_experiment import FORCE_TAG
from topr_pipeline.experiment import Experiment
from topr_pipeline.export import export
from topr_pipeline.testing import FakeModels
from topr_pipeline.views import query

ROWS = [
    {
        "prompt": f"{n} + 1 =",
        "gold": str(n + 1),
        "completion": f"The answer is {n + 1 + i % 2}",
        "reward": 1.0 if i % 2 == 0 else -1.0,
        "mu": [-0.5] * 5 if n % 2 else None,
    }
    for n in range(4)
    for i in range(3)
]
WITH_MU = {"columns": {"logprobs": "mu"}}


@dataclass
class Toy:
    """A project folder with a set, and what was asked of the models."""

    root: Path
    models: FakeModels

    def experiment(self, **changes: Any) -> Experiment:
        said = {
            "iterations": 1,
            "policy": {"source": "tiny"},
            "prompts": {"source": "files", "path": "set.jsonl"},
            "offline": {},
            "eval_prompts": {"source": "files", "path": "eval.jsonl"},
            "sampling": {"engine": "fake", "samples_per_prompt": 4},
            "evaluation": {"samples_per_prompt": 2},
        }
        return Experiment.model_validate({**said, **changes})

    def run(
        self, name: str = "toy", tags: dict[str, str] | None = None, **changes: Any
    ) -> dg.ExecuteInProcessResult:
        return dg.materialize(
            experiment_assets(name, self.experiment(**changes), self.root),
            resources={"models": self.models, "data": str(self.data)},
            raise_on_error=False,
            tags=tags,
        )

    @property
    def data(self) -> Path:
        return self.root / "data"

    def write(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        (self.root / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def table(self, key: str, name: str = "toy") -> pl.DataFrame:
        return pl.read_parquet(self.data / name / f"{key}.parquet")


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    reply = "The answer is {}".format
    toy = Toy(tmp_path, FakeModels(lambda prompt, i: reply(int(prompt.split()[0]) + 1 + i % 2)))
    toy.write("set.jsonl", ROWS)
    toy.write("eval.jsonl", [{"prompt": f"{n} + 1 =", "gold": n + 1} for n in (10, 11)])
    return toy


def sampled(toy: Toy) -> int:
    return sum(engine.generated for engine in toy.models.engines)


def test_the_set_is_trained_on_and_only_the_evaluation_samples(toy: Toy):
    assert toy.run().success
    assert sampled(toy) == 2 * 2 * 2  # evaluations, prompts, samples
    assert toy.table("prompts").select("prompt", "gold").rows()[:2] == [
        ("0 + 1 =", "1"),
        ("1 + 1 =", "2"),
    ]
    solutions, rewards = toy.table("iter_01/solutions"), toy.table("iter_01/rewards")
    assert sorted(solutions["text"]) == sorted(row["completion"] for row in ROWS)
    assert solutions["token_ids"].list.last().unique().to_list() == [1000]
    assert rewards["outcome"].value_counts().sort("outcome").rows() == [
        ("correct", 8),
        ("incorrect", 4),
    ]
    assert rewards["verifier"].unique().to_list() == ["given: reward"]
    assert toy.table("iter_01/mix").height == 12
    assert toy.models.calls.count("scorer") == toy.models.calls.count("train") == 1


def test_what_a_prompt_table_keeps_of_a_row_is_no_solution(toy: Toy):
    toy.run(offline=WITH_MU)
    assert json.loads(toy.table("prompts")["meta"][0]) == {}


def test_given_log_probs_are_kept_and_the_others_are_the_base_policys(toy: Toy):
    result = toy.run(offline=WITH_MU)
    assert result.success
    solutions = toy.table("iter_01/solutions").join(toy.table("prompts"), on="prompt_id")
    given = solutions["prompt"].is_in(["1 + 1 =", "3 + 1 ="])
    for mine, known in ((solutions.filter(given), True), (solutions.filter(~given), False)):
        assert (mine["logprobs"].to_list() == [[-0.5] * 5] * 6) is known
        assert mine["policy_version"].is_null().to_list() == [known] * 6
    assert solutions["logprob"].to_list() == pytest.approx(
        [sum(row) for row in solutions["logprobs"]]
    )
    (made,) = [
        e.materialization.metadata
        for e in result.get_asset_materialization_events()
        if e.asset_key and e.asset_key.path[-1] == "solutions"
    ]
    assert made["given_logprobs_share"].value == 0.5


def test_log_probs_of_another_policy_fail_no_check(toy: Toy, monkeypatch):
    """In training, pi/mu is not held against them either."""
    jobs = []
    train = toy.models.train
    monkeypatch.setattr(toy.models, "train", lambda job, p: jobs.append(job) or train(job, p))
    toy.run("given", offline=WITH_MU)
    toy.run("made")
    toy.run("both", iterations=3, offline={"iterations": 2})
    assert [job.on_policy for job in jobs] == [False, True, True, False, True]


def test_without_a_reward_column_completions_are_verified(toy: Toy):
    assert toy.run(offline={"columns": {"reward": None}}).success
    rewards = toy.table("iter_01/rewards")
    assert rewards["verifier"].str.starts_with("gsm8k").all()
    assert rewards["reward"].sort().to_list() == [-1.0] * 4 + [1.0] * 8
    assert set(rewards["answer"]) == {"1", "2", "3", "4", "5"}


def test_a_set_without_golds_needs_none(toy: Toy):
    toy.write("set.jsonl", [{k: v for k, v in row.items() if k != "gold"} for row in ROWS])
    prompts = {"source": "files", "path": "set.jsonl", "columns": {"gold": None}}
    assert toy.run(prompts=prompts).success
    assert toy.table("prompts")["gold"].null_count() == 4


def test_later_iterations_of_the_set_keep_its_log_probs_and_then_sampling_goes_on(toy: Toy):
    assert toy.run(iterations=3, offline={"iterations": 2}).success
    first, second, third = (toy.table(f"iter_0{k}/solutions") for k in (1, 2, 3))
    assert second.equals(first)
    assert third.height == 16
    assert sampled(toy) == 16 + 4 * 2 * 2


def test_the_prompts_of_a_set_are_dealt_out_to_iterations(toy: Toy):
    sampling = {"engine": "fake", "prompts_per_iteration": 2}
    assert toy.run(iterations=2, offline={"iterations": 2}, sampling=sampling).success
    dealt = [set(toy.table(f"iter_0{k}/solutions")["prompt_id"]) for k in (1, 2)]
    assert [len(ids) for ids in dealt] == [2, 2]
    assert not dealt[0] & dealt[1]


def test_a_set_is_replayed_with_its_log_probs_when_sampling_goes_on(toy: Toy):
    assert toy.run(iterations=2, offline=WITH_MU, mix={"replay": {"iterations": 1}}).success
    mix = toy.table("iter_02/mix")
    old = mix.filter(iteration=1).join(
        toy.table("iter_01/solutions"), on=["prompt_id", "sample_index"], suffix="_of_set"
    )
    assert old.height > 0
    assert old["logprobs"].to_list() == old["logprobs_of_set"].to_list()


def test_shards_of_sampling_do_not_matter_to_a_set(toy: Toy):
    assert toy.run(sampling={"engine": "fake", "shards": 2}).success


def test_a_second_run_and_a_forced_one_change_nothing(toy: Toy):
    toy.run()
    assert remade(toy.run()) == set()
    before = toy.table("iter_01/solutions")
    forced = remade(toy.run(tags={FORCE_TAG: "toy/iter_01/solutions"}))
    assert forced == {"iter_01/solutions"}
    assert toy.table("iter_01/solutions").equals(before)


EDITS = [
    ({"mix": {"baseline": 0.1}}, {"mix", "checkpoint", "eval_scores"}),
    ({"rewards": {"values": {"correct": 2}}}, set()),
    (
        {"offline": {"columns": {"reward": "mine"}}},
        {"solutions", "rewards", "mix", "checkpoint", "eval_scores"},
    ),
    ({"offline": {"columns": {}, "iterations": 2}}, set()),
    ({"sampling": {"engine": "fake", "temperature": 0.5}}, set()),
]


@pytest.mark.parametrize(("change", "changed"), EDITS, ids=[str(e[0]) for e in EDITS])
def test_an_edit_makes_again_what_is_made_from_it(toy: Toy, change, changed):
    toy.write("set.jsonl", [{**row, "mine": 2 * row["reward"]} for row in ROWS])
    toy.run()
    again = {key.split("/")[1] for key in remade(toy.run(**change)) if key.startswith("iter_01")}
    assert again == changed


def test_status_and_sql_know_it_as_any_other(toy: Toy):
    toy.run()
    nodes = unroll("toy", toy.experiment(), toy.root)
    assert {planned.state for planned in plan(nodes, toy.data)} == {"fresh"}
    sql = "SELECT iteration, count(*) AS n FROM solutions JOIN rewards USING "
    sql += "(experiment, iteration, prompt_id, sample_index) GROUP BY ALL"
    assert query(sql, toy.data).rows() == [(1, 12)]
    toy.write("set.jsonl", ROWS[:-1])
    stale = {
        p.key
        for p in plan(unroll("toy", toy.experiment(), toy.root), toy.data)
        if p.state == "stale"
    }
    assert {"toy/prompts", "toy/iter_01/solutions", "toy/iter_01/rewards"} <= stale


BROKEN = [
    ({"reward": "good"}, r'set.jsonl:13: the reward is "good"'),
    ({"completion": None}, r"set.jsonl:13: the completion is null"),
    ({"mu": [0.5]}, r"set.jsonl:13: the logprobs is \[0.5\]"),
    ({"prompt": "11 + 1 ="}, r"1 of 2 eval_prompts are also in prompts"),
]


@pytest.mark.parametrize(("change", "said"), BROKEN, ids=[str(b[0]) for b in BROKEN])
def test_a_broken_row_stops_before_any_model(toy: Toy, change, said):
    toy.write("set.jsonl", [*ROWS, {**ROWS[0], "gold": "12", "prompt": "11 + 2 =", **change}])
    result = toy.run(offline=WITH_MU)
    for step in ("toy__prompts", "toy__iter_00__checkpoint"):
        assert said.replace("\\", "") in failure(result, step)
    assert toy.models.calls == []


def test_words_without_a_token_are_said_before_any_model(toy: Toy):
    toy.write("set.jsonl", [*ROWS, {**ROWS[0], "completion": "zwei"}])
    result = toy.run(sampling={"engine": "transformers", "max_tokens": 8})
    said = "set.jsonl:13: the completion has words that the policy's tokenizer does not know"
    assert said in failure(result, "toy__prompts")
    assert said in failure(result, "toy__iter_00__checkpoint")
    assert toy.models.calls == []


def test_a_prompt_with_two_golds_that_is_dropped_takes_its_solutions_along(toy: Toy):
    toy.write("set.jsonl", [*ROWS, {**ROWS[0], "gold": "7"}])
    prompts = {"source": "files", "path": "set.jsonl", "doubtful": "drop"}
    assert toy.run(prompts=prompts).success
    assert toy.table("iter_01/solutions").height == 9


NO_EXPERIMENT: list[tuple[dict[str, Any], str]] = [
    ({"prompts": {"source": "word_problems", "count": 3}}, "prompts.source: files or hub"),
    ({"offline": None, "prompts": {"gold": None}}, "prompts.columns.gold: null is accepted where"),
    ({"iterations": 2, "prompts": {"gold": None}}, "prompts.columns.gold: null is accepted where"),
    (
        {"offline": {"columns": {"reward": None}}, "prompts": {"gold": None}},
        "prompts.columns.gold: null is accepted where",
    ),
    (
        {"eval_prompts": {"source": "files", "path": "e.jsonl", "columns": {"gold": None}}},
        "eval_prompts.columns.gold",
    ),
    ({"offline": {"columns": {"reward": None, "outcome": "o"}}}, "read beside a reward"),
    ({"offline": {"columns": {"rewrad": "r"}}}, "did you mean 'reward'"),
]


@pytest.mark.parametrize(("changes", "said"), NO_EXPERIMENT, ids=[str(n[0]) for n in NO_EXPERIMENT])
def test_sections_that_do_not_go_together_are_refused(toy: Toy, changes, said):
    if "gold" in changes.get("prompts", {}):
        without = {"source": "files", "path": "set.jsonl", "columns": {"gold": None}}
        changes = {**changes, "prompts": without}
    with pytest.raises(ValidationError, match=said):
        toy.experiment(**changes)


def test_what_was_exported_comes_back_with_its_tokens_and_log_probs(toy: Toy):
    online = toy.experiment(offline=None)
    toy.run("first", offline=None)
    export("first", online, 1, "solutions", toy.data, toy.root / "exported")
    columns = ("outcome", "answer", "finish_reason", "token_ids", "logprobs")
    offline = {"rendered": True, "columns": {name: name for name in columns}}
    toy.models.calls.clear()
    prompts = {"source": "files", "path": "exported/data"}
    assert toy.run("second", prompts=prompts, offline=offline).success
    assert "scorer" not in toy.models.calls
    key = ["prompt_id", "sample_index"]
    made = {"policy_version", "fingerprint", "verifier"}
    for stage in ("solutions", "rewards", "mix"):
        before, after = (
            toy.table(f"iter_01/{stage}", name).sort(key).drop(made, strict=False)
            for name in ("first", "second")
        )
        assert after.equals(before)
