import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Sampling
from topr_pipeline.progress import Progress, quiet
from topr_pipeline.solutions import Asked, sample
from topr_pipeline.tables import PROMPTS, SOLUTIONS
from topr_pipeline.testing import FakeEngine

SAMPLING = Sampling(engine="fake", samples_per_prompt=4, max_tokens=16, shard_size=6, batch_size=3)
KEY = ["prompt_id", "sample_index"]


def prompts(*names: str) -> pl.DataFrame:
    rows = {"prompt_id": names, "prompt": [f"How much is {n} ?" for n in names], "gold": "1"}
    return PROMPTS.conform(
        pl.DataFrame(rows, strict=False).with_columns(
            source=pl.lit("test"), split=pl.lit("train"), meta=pl.lit("{}")
        )
    )


FIVE = prompts("e", "b", "d", "a", "c")


@dataclass
class Run:
    """What a run left: the table, its bytes, and how many of its rows were in the store."""

    frame: pl.DataFrame
    bytes: bytes
    reused: int
    tokens: int


def asked(store: Path, **change: Any) -> Asked:
    keys = {k: change.pop(k) for k in list(change) if k in Sampling.model_fields}
    arguments: dict[str, Any] = {"prompts": FIVE, "policy_version": "v1", "seed": 7, **change}
    sampling = SAMPLING.model_copy(update=keys)
    return Asked(sampling=sampling, policy=Path("policy"), store=store, **arguments)


def run(
    store: Path, fake: FakeEngine | None = None, progress: Progress = quiet, **change: Any
) -> Run:
    out = store.with_name(f"{store.name}.solutions")
    done = sample(asked(store, **change), fake or FakeEngine(), out, progress)
    frame = SOLUTIONS.read(done.path)
    assert (done.rows, done.tokens) == (frame.height, frame["token_ids"].list.len().sum())
    assert sum(done.finish_reasons.values()) == done.rows
    return Run(frame, out.read_bytes(), done.rows - done.cost.samples, done.cost.tokens)


def shards(store: Path) -> dict[str, bytes]:
    return {str(p.relative_to(store)): p.read_bytes() for p in store.rglob("*.parquet")}


# ---------------------------------------------------------------------------------------- table


def test_rows_stand_in_the_order_of_the_prompts_and_samples(tmp_path: Path):
    engine = FakeEngine()
    sampled = run(tmp_path, engine)
    assert sampled.frame.schema == SOLUTIONS.schema
    assert sampled.frame.select(KEY).rows() == [(p, i) for p in "ebdac" for i in range(4)]
    assert (engine.started, engine.generated, engine.closed) == (1, 20, 1)
    assert (sampled.reused, sampled.tokens) == (0, 20 * 5)  # The answer is K, EOS
    assert sampled.frame["logprob"].to_list() == pytest.approx(
        [sum(row) for row in sampled.frame["logprobs"]], abs=1e-12
    )


def test_samples_of_one_prompt_differ_also_across_calls_and_top_ups(tmp_path: Path):
    run(tmp_path, prompts=prompts("a"))
    frame = run(tmp_path, prompts=prompts("a"), samples_per_prompt=12).frame
    assert frame["text"].n_unique() > 4


def test_no_prompts_give_an_empty_table_and_no_engine(tmp_path: Path):
    engine = FakeEngine()
    assert run(tmp_path, engine, prompts=FIVE.clear()).frame.equals(SOLUTIONS.empty())
    assert engine.started == 0


def test_progress_counts_reused_rows_from_the_start(tmp_path: Path):
    run(tmp_path, samples_per_prompt=1)
    seen: list[tuple[int, int, bool]] = []
    run(tmp_path, progress=lambda done, total, **f: seen.append((done, total, "tokens_per_s" in f)))
    assert seen[0] == (5, 20, False)
    assert seen[-1] == (20, 20, True)
    assert [done for done, _, _ in seen[:2]] == [5, 5]  # again when the engine has started
    assert [done for done, _, _ in seen[1:]] == sorted({done for done, _, _ in seen})


# ---------------------------------------------------------------------------------------- resume


@pytest.mark.parametrize("fail_after", range(0, 20, 3))
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, fail_after: int):
    whole = run(tmp_path / "whole").frame
    failing = FakeEngine(fail_after=fail_after)
    with pytest.raises(RuntimeError, match="as told"):
        run(tmp_path / "store", failing)
    assert failing.closed == 1
    kept = fail_after // 6 * 6  # whole shards
    engine = FakeEngine()
    sampled = run(tmp_path / "store", engine)
    assert_frame_equal(sampled.frame, whole, check_exact=True)
    assert (sampled.reused, engine.generated) == (kept, 20 - kept)
    assert shards(tmp_path / "store") == shards(tmp_path / "whole")


@pytest.mark.parametrize("fail_after", [0, 6, 9])
def test_a_resumed_top_up_equals_an_uninterrupted_one(tmp_path: Path, fail_after: int):
    for store in ("whole", "store"):
        run(tmp_path / store)
    whole = run(tmp_path / "whole", samples_per_prompt=8).frame
    with pytest.raises(RuntimeError, match="as told"):
        run(tmp_path / "store", FakeEngine(fail_after=fail_after), samples_per_prompt=8)
    again = run(tmp_path / "store", samples_per_prompt=8).frame
    assert_frame_equal(again, whole, check_exact=True)


# ---------------------------------------------------------------------------------------- reuse


def test_a_second_run_starts_no_engine(tmp_path: Path):
    first, engine = run(tmp_path), FakeEngine()
    again = run(tmp_path, engine)
    assert_frame_equal(again.frame, first.frame, check_exact=True)
    assert (again.reused, again.tokens, engine.started) == (20, 0, 0)


def test_more_samples_keep_the_first_and_sample_the_rest(tmp_path: Path):
    first, engine = run(tmp_path), FakeEngine()
    before = shards(tmp_path)
    more = run(tmp_path, engine, samples_per_prompt=8)
    assert engine.generated == 20
    assert more.frame.height == 40
    assert_frame_equal(more.frame.filter(pl.col("sample_index") < 4), first.frame, check_exact=True)
    assert shards(tmp_path).items() >= before.items()


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"samples_per_prompt": 2}, pl.col("sample_index") < 2),
        ({"prompts": prompts("e", "d", "c")}, pl.col("prompt_id").is_in(["e", "d", "c"])),
        ({"batch_size": 5, "shard_size": 11}, pl.lit(True)),
    ],
)
def test_what_is_there_is_reused(tmp_path: Path, change: dict[str, Any], kept: pl.Expr):
    first, engine = run(tmp_path), FakeEngine()
    less = run(tmp_path, engine, **change)
    assert engine.started == 0
    assert_frame_equal(less.frame, first.frame.filter(kept), check_exact=True)


def test_reordered_prompts_reuse_their_rows_in_the_new_order(tmp_path: Path):
    run(tmp_path)
    engine = FakeEngine()
    frame = run(tmp_path, engine, prompts=FIVE.reverse()).frame
    assert engine.started == 0
    assert frame["prompt_id"].unique(maintain_order=True).to_list() == list("cadbe")


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.5},
        {"top_p": 0.9},
        {"top_k": 5},
        {"max_tokens": 15},
        {"engine": "transformers"},
        {"policy_version": "v2"},
        {"seed": 8},
    ],
)
def test_another_distribution_starts_a_new_set_and_leaves_the_old(
    tmp_path: Path, change: dict[str, Any]
):
    run(tmp_path)
    before = shards(tmp_path)
    assert run(tmp_path, **change).reused == 0
    assert shards(tmp_path).items() >= before.items()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_changed_text_under_the_same_id_is_sampled_again(tmp_path: Path):
    run(tmp_path)
    changed = FIVE.with_columns(
        prompt=pl.when(prompt_id="d").then(pl.lit("Now what ?")).otherwise("prompt")
    )
    engine = FakeEngine()
    frame = run(tmp_path, engine, prompts=changed).frame
    assert engine.generated == 4
    assert frame.filter(prompt_id="d")["prompt_token_ids"].list.len().to_list() == [3] * 4
    assert run(tmp_path).frame.filter(prompt_id="d")["prompt_token_ids"][0].len() == 5


@pytest.mark.parametrize("left", [0, 10, -1])
def test_a_broken_shard_is_reported_and_sampled_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, left: int
):
    first = run(tmp_path).frame
    before = shards(tmp_path)
    broken = max(tmp_path.rglob("*.parquet"))
    broken.write_bytes(broken.read_bytes()[:left])
    with caplog.at_level(logging.WARNING):
        again = run(tmp_path)
    assert_frame_equal(again.frame, first, check_exact=True)
    assert again.reused < 20
    assert str(broken) in caplog.text
    assert shards(tmp_path) == before


# ---------------------------------------------------------------------------------------- errors


class Wrong(FakeEngine):
    """The last completion is changed, or left out, from the third call on: in the second shard."""

    def __init__(self, change: dict[str, Any]):
        super().__init__()
        self.change, self.calls = change, 0

    def generate(self, batch: Any, seed: int) -> Any:
        answers = super().generate(batch, seed)
        self.calls += 1
        if self.calls < 3:
            return answers
        last = answers[-1].pop()
        answers[-1] += [replace(last, **self.change)] if self.change else []
        return answers


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "returned 2 completions for 2 prompts; .* 3 for 2 were asked for"),
        ({"logprobs": [-1.0]}, "1 log-probs for 5 tokens"),
        ({"logprobs": [-1.0, -1.0, float("nan"), -1.0, -1.0]}, "log-prob nan"),
        ({"logprobs": [-1.0, -1.0, -1.0, -1.0, -float("inf")]}, "log-prob -inf"),
        ({"logprobs": [-1.0, -1.0, 0.7, -1.0, -1.0]}, "log-prob 0.7"),
        ({"token_ids": [1, 2, -1, 3, 4]}, "token ids from -1 to 4"),
        ({"token_ids": [1, 2, 2**31, 3, 4]}, "token ids from 1 to 2147483648"),
        ({"token_ids": [], "logprobs": []}, "0 tokens"),
        ({"token_ids": [1] * 17, "logprobs": [-1.0] * 17}, r"17 tokens \(max_tokens 16\)"),
        ({"finish_reason": "abort"}, "finish reason 'abort'"),
    ],
)
def test_useless_completions_are_refused_and_finished_shards_kept(
    tmp_path: Path, change: dict[str, Any], said: str
):
    engine = Wrong(change)
    with pytest.raises(ToprError, match=said) as error:
        run(tmp_path, engine)
    assert "sampling.engine" in str(error.value)
    assert engine.closed == 1
    assert run(tmp_path).reused == 6


def test_an_engine_that_does_not_start_is_closed(tmp_path: Path):
    class Stuck(FakeEngine):
        def start(self, policy: Path, sampling: Sampling) -> None:
            raise ToprError("no model")

    engine = Stuck()
    with pytest.raises(ToprError, match="no model"):
        run(tmp_path, engine)
    assert engine.closed == 1


def test_a_repeated_prompt_id_is_refused_before_sampling(tmp_path: Path):
    engine = FakeEngine()
    with pytest.raises(ToprError, match="stands twice"):
        run(tmp_path, engine, prompts=prompts("a", "a"))
    assert engine.started == 0


def test_a_row_that_two_runs_sampled_counts_once(tmp_path: Path):
    first = run(tmp_path).frame
    shard = min(tmp_path.rglob("*.parquet"))
    shard.with_name("zz.parquet").write_bytes(shard.read_bytes())
    assert_frame_equal(run(tmp_path).frame, first, check_exact=True)
