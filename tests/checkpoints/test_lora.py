"""Low-rank updates through peft."""

from pathlib import Path

import polars as pl
import pytest
import torch

from topr_pipeline.checkpoints import train
from topr_pipeline.checkpoints.folders import load
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Training
from topr_pipeline.tables import content_hash

LOW_RANK = Training.model_validate(
    {"batch_size": 8, "learning_rate": 1e-2, "lora": {"rank": 2}, "save_minutes": 0}
)


def test_the_updates_are_merged_and_of_low_rank(mix: pl.DataFrame, start: Path, tmp_path: Path):
    log = train(mix, start, tmp_path / "out", LOW_RANK, 0).log
    before = load(start, "float32")[0].state_dict()
    after = load(tmp_path / "out", "float32")[0].state_dict()
    assert set(after) == set(before)
    ranks = {
        name: int(torch.linalg.matrix_rank(after[name] - before[name], atol=1e-5))
        for name in before
        if before[name].ndim == 2
    }
    changed = {name.split(".")[-2] for name, rank in ranks.items() if rank}
    assert changed == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert max(ranks.values()) == 2
    assert log["log_ratio_positive"][0] == pytest.approx(0, abs=1e-5)


def test_only_the_named_layers_are_updated(mix: pl.DataFrame, start: Path, tmp_path: Path):
    named = Training.model_validate(LOW_RANK.model_dump() | {"lora": {"targets": ["q_proj"]}})
    train(mix, start, tmp_path / "out", named, 0)
    before = load(start, "float32")[0].state_dict()
    after = load(tmp_path / "out", "float32")[0].state_dict()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert changed == ["model.layers.0.self_attn.q_proj.weight"]


def test_the_updates_first_values_come_from_the_seed_alone(mix, start, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.manual_seed(ord(name))
        train(mix.head(8), start, tmp_path / name, LOW_RANK, seed)
    a, b, c = (content_hash(tmp_path / name) for name in "abc")
    assert a == b != c


def test_layers_that_the_model_has_not_are_refused(mix: pl.DataFrame, start: Path, tmp_path: Path):
    named = Training.model_validate({"lora": {"targets": ["c_attn"]}})
    with pytest.raises(ToprError, match=r"training.lora .*c_attn"):
        train(mix, start, tmp_path / "out", named, 0)


def test_a_training_that_was_cut_off_goes_on_to_the_same_weights(
    mix: pl.DataFrame, start: Path, tmp_path: Path
):
    train(mix, start, tmp_path / "whole", LOW_RANK, 0)

    def cut(done: int, total: int, **_: float) -> None:
        if done == 2 and not (tmp_path / "cut").exists():
            (tmp_path / "cut").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(mix, start, tmp_path / "out", LOW_RANK, 0, cut, state=tmp_path / "state")
    train(mix, start, tmp_path / "out", LOW_RANK, 0, cut, state=tmp_path / "state")
    assert content_hash(tmp_path / "out") == content_hash(tmp_path / "whole")
