"""The page on offline training as it is printed: its YAML on its rows, with a real policy."""

import re
from pathlib import Path

import dagster as dg
import polars as pl
import pytest

from topr_pipeline.components import experiment_assets
from topr_pipeline.components.models import RealModels
from topr_pipeline.definitions import ROOT
from topr_pipeline.experiment import Experiment


def printed(language: str) -> str:
    """The page's first block in that language."""
    found = re.search(
        rf"```{language}\n(.*?)```", (ROOT / "docs/offline.md").read_text(), re.DOTALL
    )
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The experiment `mine` after its run."""
    import yaml

    root = tmp_path_factory.mktemp("project")
    (root / "datasets").mkdir()
    (root / "datasets/solutions.jsonl").write_text(printed("jsonl"))
    said = yaml.safe_load(printed("yaml"))["attributes"]
    experiment = Experiment.model_validate({**said, "threads": 1})
    result = dg.materialize(
        experiment_assets("mine", experiment, root),
        resources={"models": RealModels(), "data": str(root)},
    )
    assert result.success
    return root / "mine"


def test_the_rows_are_trained_on_in_the_policys_tokens(folder: Path):
    mix = pl.read_parquet(folder / "iter_01/mix.parquet")
    assert mix["advantage"].sort().to_list() == [-1.0, -1.0, 1.0, 1.0]
    assert mix["token_ids"].list.last().unique().to_list() == [2]
    assert (mix["logprobs"].list.len() == mix["token_ids"].list.len()).all()
    assert (folder / "report/report.md").is_file()


def test_log_probs_that_the_set_lacks_are_those_that_the_trainer_computes(folder: Path):
    log = pl.read_parquet(folder / "iter_01/checkpoint/training_log.parquet").row(0, named=True)
    assert log["log_ratio_positive"] == pytest.approx(0, abs=1e-4)
    assert log["log_ratio_negative"] == pytest.approx(0, abs=1e-4)
    assert log["weight_negative"] == pytest.approx(1, abs=1e-4)
