"""The real thing, yet smaller than `tiny`: a policy is pre-trained, sampled, trained and scored."""

from pathlib import Path

import dagster as dg
import polars as pl
import pytest

from topr_pipeline.components import experiment_assets
from topr_pipeline.components.models import RealModels
from topr_pipeline.experiment import Experiment

POLICY = {
    "hidden_size": 64,
    "layers": 1,
    "heads": 2,
    "pretrain_steps": 300,
    "batch_size": 32,
    "learning_rate": 8e-3,
}
SMALLER = Experiment.model_validate(
    {
        "iterations": 1,
        "threads": 1,
        "policy": {"source": "tiny", **POLICY},
        "prompts": {"source": "word_problems", "count": 96, "steps": [1, 1]},
        "eval_prompts": {"source": "word_problems", "count": 64, "steps": [1, 1]},
        "sampling": {"samples_per_prompt": 8, "max_tokens": 24},
        "mix": {"baseline": 0},
        "training": {"learning_rate": 3e-4, "batch_size": 32},
    }
)


def run(folder: Path) -> dict[str, str]:
    """Data version by asset."""
    result = dg.materialize(
        experiment_assets("smaller", SMALLER, folder),
        resources={"models": RealModels(), "data": str(folder)},
    )
    return {
        "/".join(e.asset_key.path): (e.materialization.tags or {})["dagster/data_version"]
        for e in result.get_asset_materialization_events()
        if e.asset_key
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("first")


@pytest.fixture(scope="module")
def versions(folder: Path) -> dict[str, str]:
    return run(folder)


def scores(folder: Path, iteration: int) -> dict[str, float]:
    path = folder / f"smaller/iter_{iteration:02d}/eval_scores/scores.parquet"
    return dict(pl.read_parquet(path).select("metric", "value").iter_rows())


def test_one_iteration_of_topr_makes_the_policy_better(versions, folder: Path):
    before, after = scores(folder, 0), scores(folder, 1)
    assert after["pass@1"] > before["pass@1"] + 0.05
    assert after["invalid"] < before["invalid"]


def test_the_stored_log_probs_are_those_that_the_trainer_computes(versions, folder: Path):
    log = pl.read_parquet(folder / "smaller/iter_01/checkpoint/training_log.parquet")
    first = log.row(0, named=True)
    assert first["log_ratio_positive"] == pytest.approx(0, abs=1e-3)
    assert first["log_ratio_negative"] == pytest.approx(0, abs=1e-3)


def test_the_policy_is_a_folder_that_transformers_loads(versions, folder: Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    checkpoint = folder / "smaller/iter_01/checkpoint"
    assert AutoModelForCausalLM.from_pretrained(checkpoint).config.hidden_size == 64
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert tokenizer is not None
    assert tokenizer.eos_token == "<eos>"


def test_the_same_experiment_gives_the_same_artifacts_bit_for_bit(versions, tmp_path: Path):
    assert run(tmp_path) == versions
