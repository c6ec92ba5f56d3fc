"""States that trainings leave, and the room that they and the policy need."""

import os
import random
import resource
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from topr_pipeline.checkpoints import describe, train
from topr_pipeline.checkpoints.arguments import arguments
from topr_pipeline.checkpoints.packages import check_packages
from topr_pipeline.checkpoints.state_files import (
    read_generators,
    read_tree,
    write_training,
    write_tree,
)
from topr_pipeline.checkpoints.states import check_room, complete, newest, state_folder, writing
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Training
from topr_pipeline.progress import Progress
from topr_pipeline.tables import content_hash, disk_errors
from topr_pipeline.training import BitsAndBytes

EACH_STEP = Training(batch_size=8, learning_rate=1e-3, save_minutes=0)
Usage = namedtuple("Usage", "total used free")


def only_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 0, free))


def test_of_what_was_written_only_the_newest_complete_state_is_found(tmp_path: Path):
    assert newest(tmp_path) is None
    for step in (9, 10):
        (writing(tmp_path) / f"checkpoint-{step}").mkdir(parents=True)
        complete(tmp_path)
    (writing(tmp_path) / "checkpoint-11").mkdir()
    assert newest(tmp_path) == tmp_path / "checkpoint-10"
    assert not (tmp_path / "checkpoint-9").exists()


OTHERS: dict[str, dict[str, Any]] = {
    "rows": {"mix": pl.DataFrame({"row": [1, 2, 4]})},
    "order of rows": {"mix": pl.DataFrame({"row": [3, 2, 1]})},
    "start": {"start": "other"},
    "training": {"training": Training(learning_rate=1e-4)},
    "seed": {"seed": 1},
    "sharded": {"training": Training(launch={"processes": 2, "fsdp": True})},  # pyrefly: ignore
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_state_is_that_of_the_very_same_training(tmp_path: Path, what: str):
    for name in ("start", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text(name)

    def folder(**changes: Any) -> Path:
        said: dict[str, Any] = {
            "mix": pl.DataFrame({"row": [1, 2, 3]}),
            "start": "start",
            "seed": 0,
        }
        said |= changes
        training = said.get("training", Training())
        return state_folder(tmp_path, said["mix"], tmp_path / said["start"], training, said["seed"])

    assert folder() == folder()
    assert folder() == folder(training=Training(tokens_per_forward=7, save_steps=3))
    assert folder() != folder(**OTHERS[what])


def stopped_at(step: int) -> Progress:
    def progress(done: int, total: int, **_: float) -> None:
        if done == step:
            raise KeyboardInterrupt

    return progress


KINDS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw"},
    "adafactor": {"optimizer": "adafactor"},
    "sgd": {"optimizer": "sgd"},
    "rmsprop, warm-up": {"optimizer": "rmsprop", "schedule": "cosine", "warmup_steps": 2},
    "bfloat16": {"dtype": "bfloat16"},
    "shuffled samples": {"shuffle": "samples"},
    "lora": {"lora": {"rank": 2}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_goes_on_to_the_same_bytes_from_files_that_hold_no_pickle(
    mix, start, tmp_path, kind
):
    training = Training.model_validate(EACH_STEP.model_dump() | KINDS[kind] | {"batch_size": 4})
    state = tmp_path / "state"
    for step in (2, 4):  # the second time from a state that was written after going on
        with pytest.raises(KeyboardInterrupt):
            train(mix, start, tmp_path / "out", training, 0, stopped_at(step), state=state)
    files = [path for path in state.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".safetensors"}
    # As pickles and torch's zip files begin; JSON and safetensors cannot.
    assert not [path for path in files if path.read_bytes().startswith((b"\x80", b"PK"))]

    seen = []
    train(
        mix, start, tmp_path / "out", training, 0, lambda *done, **_: seen.append(done), state=state
    )
    train(mix, start, tmp_path / "whole", training, 0)
    assert seen[0] == (3, 5)
    assert content_hash(tmp_path / "out") == content_hash(tmp_path / "whole")


def test_a_tree_is_the_same_after_its_files(tmp_path):
    one = torch.arange(6.0).reshape(2, 3)
    tree: Any = {
        0: {"same": one, "again": one, "turned": one.T.clone().T, "none": torch.zeros(0)},
        "rest": [(1, -0.1, None, True), [], {}, float("inf"), torch.tensor(3)],
        "word": torch.tensor(True),
    }
    write_tree(tree, tmp_path / "tree")
    found = read_tree(tmp_path / "tree")
    torch.testing.assert_close(found, tree, rtol=0, atol=0)
    assert type(found["rest"][0]) is tuple and found["rest"][:4] == tree["rest"][:4]
    with safe_open(tmp_path / "tree.safetensors", "pt") as arrays:
        assert len(arrays.keys()) == 5  # what is the same memory is written once
    with pytest.raises(TypeError, match="a set in a state"):
        write_tree({"a": {1}}, tmp_path / "other")


def test_random_generators_go_on_where_they_were(tmp_path):
    def drawn() -> list[float]:
        return [random.random(), np.random.rand(), np.random.randn(), torch.rand(()).item()]

    np.random.randn()  # numpy keeps the second normal number for the next call
    layer = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters())
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    write_training(tmp_path, layer, optimizer, schedule, sharded=False)
    expected = drawn()
    assert drawn() != expected
    read_generators(tmp_path)
    assert drawn() == expected


def test_states_are_kept_when_they_are_due_and_not_after_the_last_step(mix, start, tmp_path):
    for steps, kept in ((1, 2), (2, 2), (3, None)):
        state = tmp_path / f"every {steps}"
        training = EACH_STEP.model_copy(update={"save_minutes": None, "save_steps": steps})
        train(mix, start, tmp_path / f"out {steps}", training, 0, state=state)
        found = [int(p.name.split("-")[1]) for p in state.glob("*/checkpoint-*")]
        assert found == ([] if kept is None else [kept])


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_too_little_room_is_said_before_the_model_is_loaded(
    mix, start, tmp_path, monkeypatch, optimizer
):
    training = EACH_STEP.model_copy(update={"optimizer": optimizer})
    parameters = describe(start)["parameters"]
    state = {"adamw": 12, "adafactor": 5}[optimizer] * parameters
    wanted = 4 * parameters + 2 * state
    only_free(monkeypatch, wanted - 1)
    with pytest.raises(ToprError, match=r"GB are free at .* two states .* Make room"):
        train(mix, start, tmp_path / "out", training, 0, state=tmp_path / "state")
    assert not (tmp_path / "out").exists()
    only_free(monkeypatch, wanted)
    train(mix, start, tmp_path / "out", training, 0, state=tmp_path / "state")


ROOM = {
    "ademamix": ({"optimizer": "ademamix"}, 4 + 2 * (4 + 12)),
    "lora": ({"lora": {"rank": 1}}, 4 + 2 * 4),
}


@pytest.mark.parametrize("name", ROOM)
def test_room_is_that_of_the_optimisers_own_numbers(tmp_path, monkeypatch, name):
    training, wanted = Training.model_validate(ROOM[name][0]), 1000 * ROOM[name][1]
    only_free(monkeypatch, wanted)
    check_room(tmp_path, tmp_path / "state", 1000, training)
    only_free(monkeypatch, wanted - 1)
    with pytest.raises(ToprError, match="Make room"):
        check_room(tmp_path, tmp_path / "state", 1000, training)


def test_the_states_of_a_killed_training_are_not_counted_against_it(tmp_path, monkeypatch):
    (tmp_path / "state/f00d/checkpoint-3").mkdir(parents=True)
    (tmp_path / "state/f00d/checkpoint-3/weights").write_bytes(bytes(12_000))
    only_free(monkeypatch, 16_000)
    check_room(tmp_path, tmp_path / "state", 1000, Training())


def test_states_of_another_training_go_when_one_starts(mix, start, tmp_path):
    old = tmp_path / "state" / "f00d" / "checkpoint-3"
    old.mkdir(parents=True)
    train(mix, start, tmp_path / "out", EACH_STEP, 0, state=tmp_path / "state")
    assert not old.exists() and len(list((tmp_path / "state").iterdir())) == 1


def test_without_states_there_need_only_be_room_for_the_policy(mix, start, tmp_path, monkeypatch):
    none = EACH_STEP.model_copy(update={"save_minutes": None})
    only_free(monkeypatch, 4 * describe(start)["parameters"])
    train(mix, start, tmp_path / "out", none, 0, state=tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_a_disk_that_fills_while_weights_are_written_is_told_as_one(tmp_path):
    weights = {"weights": torch.zeros(1 << 16)}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(ToprError, match=r"cannot be written: .* make"), disk_errors(tmp_path):
            save_file(weights, tmp_path / "weights")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(RuntimeError, match="shapes"), disk_errors(tmp_path):
        raise RuntimeError("shapes differ")


def test_shards_in_bfloat16_sum_their_gradients_in_float32(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    launch = {"processes": 2, "fsdp": True}
    training = Training.model_validate({"dtype": "bfloat16", "launch": launch})
    plugin: Any = arguments(training, 0, tmp_path, None, "toy").fsdp_plugin_args
    policy = plugin["mixed_precision_policy"]
    assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize("tool", ["tensorboard", "wandb", "mlflow", "trackio"])
def test_a_tool_that_is_not_installed_is_said_before_the_model_is_loaded(
    mix, start, tmp_path, monkeypatch, tool
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    training = EACH_STEP.model_copy(update={"report_to": (tool,)})
    with pytest.raises(ToprError, match=rf"{tool} is not installed; training.report_to"):
        train(mix, start, tmp_path / "out", training, 0)


@pytest.mark.parametrize("optimizer", get_args(BitsAndBytes))
def test_an_optimisers_package_is_looked_for_before_anything_runs(monkeypatch, optimizer):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ToprError, match=rf"bitsandbytes is not .*training.optimizer {optimizer}"):
        check_packages(Training(optimizer=optimizer))
    check_packages(Training(optimizer="adamw"))


def test_lora_without_peft_is_said_before_the_model_is_loaded(mix, start, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    training = Training.model_validate({"lora": {"rank": 4}})
    with pytest.raises(ToprError, match=r"peft is not installed; training.lora"):
        train(mix, start, tmp_path / "out", training, 0)
