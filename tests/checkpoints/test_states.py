"""States that trainings leave, and the room that they and the policy need."""

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any, get_args

import polars as pl
import pytest

from topr_pipeline.checkpoints import describe, train
from topr_pipeline.checkpoints.packages import check_packages
from topr_pipeline.checkpoints.states import complete, newest, state_folder, writing
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Training
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


def test_without_states_there_need_only_be_room_for_the_policy(mix, start, tmp_path, monkeypatch):
    none = EACH_STEP.model_copy(update={"save_minutes": None})
    only_free(monkeypatch, 4 * describe(start)["parameters"])
    train(mix, start, tmp_path / "out", none, 0, state=tmp_path / "state")
    assert not (tmp_path / "state").exists()


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
