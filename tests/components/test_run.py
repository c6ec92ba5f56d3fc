"""`topr` on a project with mocked models and a persistent Dagster instance of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import polars as pl
import pytest
from typer.testing import CliRunner, Result

from topr_pipeline import cli
from topr_pipeline.components.launch import project_instance
from topr_pipeline.components.project import load_project
from topr_pipeline.testing import FakeModels

YAML = """\
type: topr_pipeline.components.TOPRExperiment
attributes:
  iterations: 2
  policy: {source: tiny}
  prompts: {source: files, path: train.jsonl}
  eval_prompts: {source: files, path: eval.jsonl}
  sampling: {engine: fake, samples_per_prompt: 4, shard_size: 4, batch_size: 4}
  mix: {baseline: 0}
  evaluation: {samples_per_prompt: 2}
"""
DAGSTER_YAML = (Path(__file__).parents[2] / "dagster.yaml").read_text()


SLOW_RUN = """
import sys, time
sys.path.insert(0, {tests!r})
from test_run import half_right
from topr_pipeline import cli
from topr_pipeline.components.project import load_project
from topr_pipeline.testing import FakeModels

def slow(prompt, i):
    time.sleep({pause})
    return half_right(prompt, i)

cli._load = lambda: load_project(__import__("pathlib").Path({root!r}), FakeModels(slow))
cli.app(["run", {experiment!r}])
"""


def half_right(prompt: str, i: int) -> str:
    return f"The answer is {int(prompt.split(maxsplit=1)[0]) + 1 + i % 2}"


class Project:
    """A project folder, and `topr` run in it in this process."""

    def __init__(self, write: Callable[..., Path]):
        self.write = write
        self.root = write(toy=YAML)
        self.models = FakeModels(half_right)
        (self.root / "dagster.yaml").write_text(DAGSTER_YAML)
        for name, numbers in {"train": range(6), "eval": range(10, 14)}.items():
            rows = [{"prompt": f"{n} + 1 =", "gold": n + 1} for n in numbers]
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (self.root / f"{name}.jsonl").write_text(text)

    def topr(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli.app, list(arguments))

    def start(self, experiment: str, pause: float) -> subprocess.Popen[bytes]:
        """`topr run` in another process, which has sampled six shards when this returns."""
        script = SLOW_RUN.format(
            tests=str(Path(__file__).parent),
            pause=pause,
            root=str(self.root),
            experiment=experiment,
        )
        environment = {**os.environ, "PYTHONPATH": str(self.root)}
        process = subprocess.Popen([sys.executable, "-c", script], env=environment)
        samples = self.root / "data" / experiment / "samples"
        while len(list(samples.glob("*/*.parquet"))) < 6:
            assert process.poll() is None, "the run ended before it was killed"
            time.sleep(0.05)
        return process

    def runs(self) -> list[dg.DagsterRun]:
        with project_instance(self.root) as instance:
            return list(instance.get_runs())

    def states(self) -> dict[str, str]:
        lines = self.topr("status", "--json").stdout.splitlines()
        return {p["asset"]: p["state"] for p in map(json.loads, lines)}

    def table(self, key: str) -> pl.DataFrame:
        return pl.read_parquet(self.root / "data" / "toy" / f"{key}.parquet")


@pytest.fixture
def project(write_project, monkeypatch: pytest.MonkeyPatch) -> Project:
    project = Project(write_project)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setattr(cli, "_load", lambda: load_project(project.root, project.models))
    return project


def test_run_makes_everything_and_prints_the_closing_table(project: Project):
    result = project.topr("run", "toy")
    assert result.exit_code == 0, result.output
    assert "toy/iter_02/checkpoint" in result.stdout
    assert "report.html" in result.stdout
    assert set(project.states().values()) == {"fresh"}


def test_a_second_run_launches_nothing_and_says_so(project: Project):
    project.topr("run")
    before = len(project.runs())
    result = project.topr("run")
    assert result.exit_code == 0
    assert "nothing to run" in result.stdout
    assert len(project.runs()) == before == 1


def test_an_engine_that_is_not_installed_is_said_before_anything_runs(project: Project):
    engine = '"python: no_such.engine:make", max_tokens: 8'
    project.write(toy=YAML.replace("engine: fake", f"engine: {engine}"))
    result = project.topr("run", "toy")
    assert result.exit_code == 1
    assert "sampling.engine" in result.stderr
    assert project.models.calls == []
    assert not project.runs()


def test_a_dry_run_launches_nothing(project: Project):
    result = project.topr("run", "--dry-run")
    assert result.stdout.count("missing") == 15
    assert project.runs() == []
    assert project.models.calls == []


def test_through_stops_after_that_iteration(project: Project):
    project.topr("run", "--through", "1")
    made = {k for k, state in project.states().items() if state == "fresh"}
    assert "toy/iter_01/eval_scores" in made
    assert not any(k.startswith(("toy/iter_02", "toy/report")) for k in made)


def test_only_what_is_stale_is_launched(project: Project):
    project.topr("run")
    project.write(toy=YAML.replace("baseline: 0", "baseline: 0.1"))
    result = project.topr("run")
    with project_instance(project.root) as instance:
        steps = {s.step_key for s in instance.get_run_step_stats(project.runs()[0].run_id)}
    assert "toy__iter_01__mix" in steps
    assert steps.isdisjoint({"toy__prompts", "toy__iter_01__solutions", "toy__iter_01__rewards"})
    assert result.exit_code == 0


def test_a_deleted_artifact_launches_it_and_what_depends_on_it(project: Project):
    project.topr("run")
    shutil.rmtree(project.root / "data/toy/iter_02/eval_scores")
    result = project.topr("run")
    assert "toy: 2 of 15 assets to make" in result.stdout
    assert set(project.states().values()) == {"fresh"}


def test_a_forced_asset_is_launched(project: Project):
    project.topr("run")
    result = project.topr("run", "--force", "iter_02/mix")
    assert "toy: 4 of 15 assets to make" in result.stdout


def test_an_unknown_asset_to_force_is_refused_with_the_nearest(project: Project):
    result = project.topr("run", "--force", "iter_02/mx")
    assert result.exit_code == 1
    assert "iter_02/mix" in result.stderr


def test_an_unknown_experiment_is_refused_with_those_that_exist(project: Project):
    result = project.topr("run", "other")
    assert result.exit_code == 1
    assert "there are: toy" in result.stderr


def test_a_wrong_key_is_one_message_and_no_run(project: Project):
    project.write(toy=YAML.replace("baseline", "basline"))
    result = project.topr("run")
    assert result.exit_code == 1
    assert "toy/defs.yaml:8: mix.basline: unknown key" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("train.jsonl", None, "prompts.path"),
        ("train.jsonl", "", "holds no prompt"),
        ("eval.jsonl", '{"prompt": "3 + 1 =", "gold": 4}', "train.jsonl:4"),
    ],
    ids=["missing", "empty", "overlap"],
)
def test_unusable_prompts_are_one_message_and_no_run(project: Project, file, text, said):
    path = project.root / file
    path.write_text(text) if text is not None else path.unlink()
    result = project.topr("run")
    assert result.exit_code == 1
    assert said in result.stderr
    assert project.runs() == []


def test_a_one_sided_mix_is_said_and_trains_nothing(project: Project):
    project.models.reply = lambda prompt, i: "The answer is 99"
    result = project.topr("run")
    assert result.exit_code == 1
    assert "min_positives" in result.stderr
    assert "train" not in project.models.calls
    assert project.states()["toy/iter_01/mix"] == "stale"


def test_a_failed_check_is_no_stack_trace(project: Project):
    project.models.reply = lambda prompt, i: "The answer is 99"
    result = project.topr("run")
    assert "check failed" in result.stdout
    assert "Traceback" not in result.output
    assert "File " not in result.output


def test_a_forced_asset_beyond_through_is_refused(project: Project):
    result = project.topr("run", "--through", "1", "--force", "iter_02/mix")
    assert "toy/iter_02/mix lies beyond --through 1" in result.stderr


def test_scores_of_a_run_through_an_iteration_are_those_of_the_run(project: Project):
    project.topr("run")
    project.write(toy=YAML.replace("baseline: 0", "baseline: 0.1"))
    result = project.topr("run", "--through", "1")
    assert "Report" not in result.stdout


def test_an_unexpected_error_is_shown_with_its_place(project: Project):
    project.models.fail_after = 4
    result = project.topr("run")
    assert result.exit_code == 1
    assert "fake engine stops after 4" in result.stderr


def test_data_kept_without_its_instance_is_taken_over_and_not_made_again(project: Project):
    project.topr("run")
    shutil.rmtree(project.root / ".dagster")
    project.models.calls.clear()
    assert set(project.states().values()) == {"stale"}
    assert project.topr("run").exit_code == 0
    assert set(project.states().values()) == {"fresh"}
    assert not {"train", "base_policy"} & set(project.models.calls)


def test_report_prints_the_scores_and_where_the_files_are(project: Project):
    assert project.topr("report", "toy").exit_code == 1
    project.topr("run")
    result = project.topr("report", "toy")
    assert "pass@1" in result.stdout
    assert "data/toy/report/report.html" in result.stdout.replace("\n", "")


def test_report_of_an_unfinished_experiment_says_what_is_missing(project: Project):
    project.topr("run", "--through", "1")
    result = project.topr("report", "toy")
    assert result.exit_code == 0, result.output
    page = (project.root / "data/toy/reports/toy/report.html").read_text()
    assert "iter_02/mix is missing: never made" in page
    assert set(project.states().values()) == {"fresh", "missing"}


def test_report_of_several_experiments_is_written_where_it_is_told(project: Project):
    project.write(other=YAML.replace("baseline: 0", "baseline: 0.1"))
    project.topr("run", "toy", "--through", "0")
    refused = project.topr("report", "toy", "other", "--output", str(project.root / "both"))
    assert refused.exit_code == 1
    assert "other has no eval_scores yet" in refused.stderr
    assert not (project.root / "both").exists()
    project.topr("run", "other", "--through", "0")
    result = project.topr("report", "toy", "other", "--output", str(project.root / "both"))
    assert result.exit_code == 0, result.output
    assert "mix.baseline" in (project.root / "both/report.html").read_text()


@pytest.mark.parametrize(("how", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_run_that_is_stopped_while_sampling_goes_on_to_the_same_tables(
    project: Project, how: signal.Signals, code: int
):
    process = project.start("toy", pause=0.2)
    process.send_signal(how)
    assert process.wait(timeout=60) == code
    samples = project.root / "data/toy/samples"
    kept = len(list(samples.glob("*/*.parquet")))
    assert kept >= 6

    result = project.topr("run")
    assert result.exit_code == 0, result.output
    assert project.runs()[0].status == dg.DagsterRunStatus.SUCCESS
    assert all(r.is_finished for r in project.runs())
    resumed = {k: project.table(f"iter_02/{k}") for k in ("solutions", "rewards", "mix")}
    shutil.rmtree(project.root / "data")
    project.topr("run")
    for key, frame in resumed.items():
        assert project.table(f"iter_02/{key}").equals(frame)


def test_a_killed_run_of_another_experiment_does_not_keep_the_accelerator(project: Project):
    project.write(other=YAML)
    process = project.start("other", pause=0.2)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    assert project.topr("run", "toy").exit_code == 0
    assert all(r.is_finished for r in project.runs())


def test_a_second_run_at_once_is_refused_in_one_sentence(project: Project):
    from filelock import FileLock

    (project.root / "data/toy").mkdir(parents=True)
    with FileLock(project.root / "data/toy/.run.lock"):
        result = project.topr("run")
    assert result.exit_code == 1
    assert "another `topr run toy` is running" in result.stderr


def test_verify_grades_a_file_and_keeps_its_columns(project: Project):
    file = project.root / "answers.csv"
    file.write_text("id,answer_text,right\n7,The answer is 8.,8\n8,The answer is 9.,8\n")
    options = ["--verifier", "gsm8k", "--completion", "answer_text", "--gold", "right"]
    result = project.topr("verify", str(file), *options)
    assert result.exit_code == 0, result.output
    graded = pl.read_csv(project.root / "answers.verified.csv")
    assert graded.columns == ["id", "answer_text", "right", "answer", "outcome", "reward", "detail"]
    assert graded["outcome"].to_list() == ["correct", "incorrect"]


def test_verify_refuses_an_unknown_verifier_with_those_that_are_known(project: Project):
    result = project.topr("verify", str(project.root / "train.jsonl"), "--verifier", "gsm9k")
    assert result.exit_code == 1
    assert "--verifier gsm9k: accepted: gsm8k, math" in result.stderr


def test_a_run_is_refused_while_another_one_of_the_experiment_is_in_progress(project: Project):
    with project_instance(project.root) as instance:
        run = instance.create_run_for_job(
            load_project(project.root, project.models).definitions.resolve_job_def("toy"),
            status=dg.DagsterRunStatus.STARTED,
            tags={"topr/experiment": "toy"},
        )
    result = project.topr("run", "toy")
    assert result.exit_code == 1
    assert f"run {run.run_id} of toy" in result.stderr
    assert project.models.calls == []
