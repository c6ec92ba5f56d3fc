"""Jobs in processes of their own, and what becomes of them when something is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
import torch
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from topr_pipeline.checkpoints import train
from topr_pipeline.checkpoints.folders import load
from topr_pipeline.checkpoints.job import first
from topr_pipeline.checkpoints.jobs import BasePolicyJob, TrainJob, read_job, write_job
from topr_pipeline.checkpoints.launcher import _death, run_job
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Bounds, TinyPolicy, Training
from topr_pipeline.progress import Progress
from topr_pipeline.tables import MIX, TIMED, TRAINING_LOG, content_hash

pytestmark = pytest.mark.slow

DEADLY = Training(
    objective="python: deadly:loss", batch_size=4, learning_rate=1e-3, epochs=2, save_minutes=0
)
TIMINGS = ("tokens_per_s", "seconds")


@pytest.fixture
def deaths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that `deadly` looks into; it is on the path, for children too."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    folder = tmp_path / "deaths"
    folder.mkdir()
    monkeypatch.setenv("DEADLY", str(folder))
    return folder


@pytest.fixture
def job(mix: pl.DataFrame, start: Path, tmp_path: Path) -> TrainJob:
    MIX.write(mix, tmp_path / "mix.parquet")
    return TrainJob(
        name="toy/iter_01/checkpoint",
        mix=tmp_path / "mix.parquet",
        start=start,
        folder=tmp_path / "out",
        state=tmp_path / "state",
        seed=3,
        threads=1,
        training=DEADLY,
    )


def with_training(job: TrainJob, **changes: Any) -> TrainJob:
    training = Training.model_validate(job.training.model_dump() | changes)
    return job.model_copy(update={"training": training})


def plan(deaths: Path, **said: dict[int, str]) -> None:
    for name, of_calls in said.items():
        (deaths / f"{name}.json").write_text(json.dumps(of_calls))


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def wait_until(true: Any) -> None:
    for _ in range(6000):
        if true():
            return
        time.sleep(0.05)
    pytest.fail("waited for five minutes")


def test_a_job_is_the_same_after_its_file(job: TrainJob, tmp_path: Path):
    unbounded = Bounds(negative=(0, float("inf")))
    jobs = [
        with_training(job, objective=unbounded.model_dump(), report_to=["wandb"]),
        BasePolicyJob(folder=tmp_path, policy=TinyPolicy(source="tiny")),
    ]
    for each in jobs:
        write_job(each, tmp_path / "job.json")
        assert read_job(tmp_path / "job.json") == each


def test_a_training_killed_three_times_ends_with_the_weights_of_one_that_was_not(
    job: TrainJob, deaths: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # In the 3rd step; then while the state after the 5th is written, which is thus done again.
    plan(deaths, calls={3: "kill", 9: "kill"}, states={5: "kill"})
    seen: list[int] = []
    for _ in range(3):
        with pytest.raises(ToprError, match="signal 9"):
            run_job(job, lambda done, total, **_: seen.append(done))
        assert not job.folder.exists()
    figures = run_job(job, lambda done, total, **_: seen.append(done))

    assert seen == [0, 1, 2, 2, 3, 4, 5, 4, 5, 6, 6, 7, 8, 9, 10]
    monkeypatch.delenv("DEADLY")
    (deaths / "calls.json").unlink()
    (deaths / "states.json").unlink()
    whole = train(MIX.read(job.mix), job.start, tmp_path / "whole", DEADLY, job.seed)
    assert content_hash(job.folder) == content_hash(tmp_path / "whole")
    assert figures == {"mean_clipped_ratio": whole.mean_clipped_ratio}
    log = TRAINING_LOG.read(job.folder / TIMED)
    assert log.drop(TIMINGS).equals(whole.log.drop(TIMINGS))
    assert log["seconds"].is_sorted()


DEATHS = {
    "kill": "its process was killed by signal 9 (SIGKILL), most likely for lack of memory (OOM)",
    "exit": "its process ended with exit code 3",
}


@pytest.mark.parametrize("how", DEATHS)
def test_a_death_is_told_as_what_it_was(job: TrainJob, deaths: Path, how: str):
    plan(deaths, calls={2: how})
    with pytest.raises(ToprError) as error:
        run_job(job)
    assert f"toy/iter_01/checkpoint: {DEATHS[how]}" in str(error.value)
    assert ("a word before the end" in str(error.value)) == (how == "exit")


def test_what_a_user_has_to_mend_is_told_in_its_own_words(job: TrainJob):
    MIX.write(MIX.empty(), job.mix)
    with pytest.raises(ToprError, match=r"^mix: no rows to train on"):
        run_job(with_training(job, objective="topr"))


def test_warnings_of_the_process_are_warnings_here(job: TrainJob, caplog):
    unknown = pl.when(pl.col("prompt_id") == "p7").then(None).otherwise("logprobs")
    MIX.write(MIX.read(job.mix).with_columns(logprobs=unknown), job.mix)
    run_job(with_training(job, objective="topr", max_missing_logprobs=0.5, save_minutes=None))
    assert "their ratio counts as 1" in caplog.text
    assert job.state is not None and not job.state.exists()


def interrupt_at(step: int) -> Progress:
    def progress(done: int, total: int, **_: float) -> None:
        if done == step:
            raise KeyboardInterrupt

    return progress


def test_an_interrupted_job_ends(job: TrainJob, deaths: Path):
    plan(deaths, calls={2: "sleep"})
    with pytest.raises(KeyboardInterrupt):
        run_job(job, interrupt_at(1))
    (pid,) = {int(pid) for pid in (deaths / "calls").read_text().split()}
    assert gone(pid)


PARENT = """
import sys
from pathlib import Path
from topr_pipeline.checkpoints.jobs import read_job
from topr_pipeline.checkpoints.launcher import run_job
run_job(read_job(Path(sys.argv[1])))
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_a_job_ends_when_its_parent_is_killed(
    job: TrainJob, deaths: Path, tmp_path: Path, processes: int
):
    plan(deaths, calls={1: "sleep", 2: "sleep"})
    write_job(with_training(job, launch={"processes": processes}), tmp_path / "job.json")
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    command = [sys.executable, "-c", PARENT, str(tmp_path / "job.json")]
    parent = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths})
    calls = deaths / "calls"
    wait_until(lambda: calls.exists() and calls.read_text().count("\n") >= processes)
    children = psutil.Process(parent.pid).children(recursive=True)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert {int(pid) for pid in calls.read_text().split()} <= {child.pid for child in children}
    wait_until(lambda: all(gone(child.pid) for child in children))


@pytest.mark.parametrize("fsdp", [False, True], ids=["data parallel", "fsdp"])
def test_two_processes_train_as_one(job: TrainJob, deaths: Path, tmp_path: Path, fsdp: bool):
    """The last step has fewer samples than the others; forwards are of one unit here."""
    training = {"objective": "topr", "batch_size": 8, "epochs": 1, "tokens_per_forward": 1}
    alone = with_training(job, **training).training
    job = with_training(job, **training, launch={"processes": 2, "fsdp": fsdp})
    if fsdp:  # and it goes on from a state
        job = with_training(job, objective="python: sharded_on_cpu:objective")
        with pytest.raises(KeyboardInterrupt):
            run_job(job, interrupt_at(2))
        assert list(tmp_path.glob("state/*/checkpoint-*/training.safetensors"))
    run_job(job)
    one = train(MIX.read(job.mix), job.start, tmp_path / "one", alone, job.seed)
    log = TRAINING_LOG.read(job.folder / TIMED)
    for column in set(log.columns) - set(TIMINGS):
        assert log[column].to_list() == pytest.approx(
            one.log[column].to_list(), rel=1e-5, abs=1e-6
        ), column
    expected = load(tmp_path / "one", "float32")[0].state_dict()
    for name, tensor in load(job.folder, "float32")[0].state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6)


def test_two_processes_of_which_one_is_killed_end_with_the_weights_of_two_that_were_not(
    job: TrainJob, deaths: Path, tmp_path: Path
):
    plan(deaths, calls={5: "kill"})  # two calls a step, so in the 3rd
    job = with_training(job, launch={"processes": 2}, epochs=1)
    seen: list[int] = []
    with pytest.raises(ToprError, match="signal 9"):
        run_job(job, lambda done, total, **_: seen.append(done))
    run_job(job, lambda done, total, **_: seen.append(done))
    assert seen == [0, 1, 2, 2, 3, 4, 5]
    whole = job.model_copy(update={"folder": tmp_path / "whole", "state": None})
    run_job(whole)
    assert content_hash(job.folder) == content_hash(whole.folder)
    one, other = (TRAINING_LOG.read(each.folder / TIMED) for each in (job, whole))
    assert one.drop(TIMINGS).equals(other.drop(TIMINGS))


def test_shards_are_refused_where_there_is_no_gpu(job: TrainJob):
    sharded = with_training(job, objective="topr", launch={"processes": 2, "fsdp": True})
    with pytest.raises(ToprError, match="accelerate shards over GPUs alone"):
        run_job(sharded)


def test_of_two_processes_the_one_that_is_killed_is_told(job: TrainJob, deaths: Path):
    plan(deaths, calls={3: "kill"})
    with pytest.raises(ToprError, match=r"one of its 2 processes was killed by signal 9"):
        run_job(with_training(job, launch={"processes": 2}))


def test_an_exception_in_one_of_two_processes_has_the_last_word(job: TrainJob, deaths: Path):
    plan(deaths, calls={2: "raise"})
    with pytest.raises(ToprError, match=r"(?s)exit code 1.*RuntimeError: a mistake of its own$"):
        run_job(with_training(job, launch={"processes": 2}))


def failure(rank: int, code: int, file: Path) -> ProcessFailure:
    return ProcessFailure(rank, 100 + rank, code, str(file))


def test_the_failure_that_the_others_followed_from_is_the_first(tmp_path: Path):
    for name, at in (("early", 1.0), ("late", 2.0)):
        (tmp_path / name).write_text(json.dumps({"message": name, "timestamp": 1}))
        os.utime(tmp_path / name, (at, at))
    late, early = failure(0, 1, tmp_path / "late"), failure(1, 1, tmp_path / "early")
    told, killed = failure(2, -15, tmp_path / "no"), failure(3, -9, tmp_path / "no")
    assert first({0: late, 1: early, 2: told}) is early
    assert first({0: late, 1: early, 2: told, 3: killed}) is killed


@pytest.mark.parametrize("code", [255, 3, 200])
def test_an_exit_code_that_is_no_signals_is_told_as_one(job: TrainJob, tmp_path: Path, code: int):
    (tmp_path / "stderr").write_text("oh")
    assert f"ended with exit code {code}" in str(_death(job, code, tmp_path / "stderr"))


@pytest.mark.parametrize("code", [-9, 137])
def test_a_signal_is_told_by_its_name(job: TrainJob, tmp_path: Path, code: int):
    (tmp_path / "stderr").touch()
    assert "signal 9 (SIGKILL)" in str(_death(job, code, tmp_path / "stderr"))
