"""`topr diff`: the figures are those of the tables, the notes those of the manifests."""

from pathlib import Path

import polars as pl
import pytest

from topr_pipeline.components.diff import difference
from topr_pipeline.components.graph import Node, unroll
from topr_pipeline.components.manifest import Manifest
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Experiment
from topr_pipeline.tables import MIX, REWARDS

EXPERIMENT = Experiment.model_validate(
    {
        "iterations": 2,
        "policy": {"source": "tiny"},
        "prompts": {"source": "word_problems", "count": 4},
        "eval_prompts": {"source": "word_problems", "count": 2},
    }
)
REWARDED = {  # iteration -> rows of prompt_id, sample_index, reward
    1: [("a", 0, 1.0), ("a", 1, -1.0), ("b", 0, -1.0), ("b", 1, -1.0)],
    2: [("b", 0, 1.0), ("b", 1, 1.0), ("c", 0, 1.0), ("c", 1, -1.0)],
}


def manifest(version: str, **code: str) -> Manifest:
    return Manifest(code, version, inputs={})


@pytest.fixture
def nodes(tmp_path: Path) -> dict[str, Node]:
    """Two mixes, the second without its last row and with two kept from the first iteration."""
    nodes = unroll("toy", EXPERIMENT, tmp_path)
    for k, rows in REWARDED.items():
        frame = pl.DataFrame(rows, schema=["prompt_id", "sample_index", "reward"], orient="row")
        right = pl.when(pl.col("reward") > 0).then(pl.lit("correct")).otherwise(pl.lit("invalid"))
        missing = {c: pl.lit(None) for c in REWARDS.columns if c not in frame.columns}
        rewards = frame.with_columns(**{**missing, "outcome": right})
        REWARDS.write(rewards, nodes[f"toy/iter_0{k}/rewards"].path(tmp_path))
        tokens = {c: pl.lit([1]) for c in ("prompt_token_ids", "token_ids", "logprobs")}
        mixed = frame.with_columns(
            iteration=k, advantage=pl.col("reward") - 0.5, logprob=pl.lit(-1.0), **tokens
        )
        if k == 2:
            older = mixed[:1].with_columns(prompt_id=pl.lit("a"), iteration=pl.lit(1))
            mixed = pl.concat([mixed[:-1], older])
        MIX.write(mixed, nodes[f"toy/iter_0{k}/mix"].path(tmp_path))
        for stage in ("rewards", "mix"):
            made = manifest(f"{stage} {k}", mix=f"steps {k}")
            made.write(nodes[f"toy/iter_0{k}/{stage}"].manifest_path(tmp_path))
    return nodes


def test_figures_of_both_mixes_stand_side_by_side(nodes: dict[str, Node], tmp_path: Path):
    found = difference("toy", nodes, 2, tmp_path)
    figures = {row[0]: row[1:] for row in found.figures.iter_rows()}
    assert figures["rows"] == ("4", "4", "+0")
    assert figures["rows of earlier iterations"] == ("0", "1", "+1")
    assert figures["positives"] == ("1", "4", "+3")
    assert figures["positive share p"] == ("0.25", "1", "+0.75")
    assert figures["effective share p~"] == ("0.1", "1", "+0.9")  # 0.5 of 0.5 + 3 * 1.5
    assert figures["baseline c"] == ("0.5", "0.5", "+0")
    assert figures["solve rate"] == ("0.25", "0.75", "+0.5")
    assert figures["prompts never solved"] == ("1", "0", "-1")
    assert figures["prompts always solved"] == ("0", "1", "+1")


def test_unverifiable_samples_do_not_count_against_the_solve_rate(nodes, tmp_path: Path):
    path = nodes["toy/iter_02/rewards"].path(tmp_path)
    unknown = pl.when(pl.col("reward") < 0).then(pl.lit("unverifiable")).otherwise("outcome")
    REWARDS.write(REWARDS.read(path).with_columns(outcome=unknown), path)
    figures = {row[0]: row[2] for row in difference("toy", nodes, 2, tmp_path).figures.iter_rows()}
    assert (figures["solve rate"], figures["prompts always solved"]) == ("1", "2")


def test_figures_that_an_iteration_does_not_have_are_left_blank(nodes, tmp_path: Path):
    nodes["toy/iter_01/rewards"].manifest_path(tmp_path).unlink()
    figures = {row[0]: row[1:] for row in difference("toy", nodes, 2, tmp_path).figures.iter_rows()}
    assert figures["solve rate"] == (None, "0.75", None)
    assert figures["rows"] == ("4", "4", "+0")


def test_notes_say_which_prompts_and_what_of_the_yaml_changed(nodes, tmp_path: Path):
    trained = Manifest({}, "checkpoint", inputs={"toy/iter_02/mix": "an older one"})
    trained.write(nodes["toy/iter_02/checkpoint"].manifest_path(tmp_path))
    assert difference("toy", nodes, 2, tmp_path).notes == [
        "2 prompts are in both mixes, 0 only in the one before, 1 only in this one",
        "They were made from different versions of: mix",
        "toy/iter_02/checkpoint was trained on an earlier version of this mix",
    ]


def test_what_cannot_be_compared_is_said(nodes: dict[str, Node], tmp_path: Path):
    for k in (1, 3):
        with pytest.raises(ToprError, match=f"iteration {k} has no mix before it"):
            difference("toy", nodes, k, tmp_path)
    nodes["toy/iter_01/mix"].manifest_path(tmp_path).unlink()
    with pytest.raises(ToprError, match=r"toy/iter_01/mix is not there yet; run `topr run toy"):
        difference("toy", nodes, 2, tmp_path)
