"""The experiments in `assets/` load, validate and unroll without a network, a GPU or a model."""

from pathlib import Path

import pytest

from topr_pipeline.components.graph import unroll
from topr_pipeline.components.project import load_project
from topr_pipeline.definitions import ROOT
from topr_pipeline.experiment import Experiment

PAPER = {"llama3_8b_gsm8k": 16, "llama3_8b_math": 32}


@pytest.fixture(scope="module")
def experiments() -> dict[str, Experiment]:
    return {name: c.experiment for name, c in load_project().experiments.items()}


def test_every_experiment_loads_and_only_tiny_is_tiny(experiments):
    folders = {path.parent.name for path in (ROOT / "assets").glob("*/defs.yaml")}
    assert set(experiments) == folders
    sizes = {name: e.tags["size"] for name, e in experiments.items()}
    assert [name for name, size in sizes.items() if size == "tiny"] == ["tiny"]
    assert {name for name, size in sizes.items() if size == "large"} >= set(PAPER)


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_setup(experiments, name):
    e = experiments[name]
    sampling, training = e.sampling, e.training
    assert sampling.samples_per_prompt == PAPER[name]
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 500)
    assert (sampling.engine, sampling.max_tokens) == ("vllm", 512)
    assert (training.optimizer, training.learning_rate) == ("adafactor", 5e-7)
    assert (training.schedule, training.epochs, training.max_grad_norm) == ("constant", 1, 1.0)
    assert (training.objective, training.weight_decay) == ("topr", 0.0)
    assert [step.strategy for step in e.mix.steps] == ["anna_karenina"]
    assert 0.1 <= e.mix.effective_positive_share <= 0.2
    assert e.policy.source == e.prompts.source == "hub"


def test_every_experiment_unrolls(experiments):
    for name, e in experiments.items():
        assert len(unroll(name, e, Path(ROOT))) == 5 + 5 * e.iterations


def test_make_run_names_the_tiny_experiment_alone():
    assert "topr run tiny\n" in (ROOT / "Makefile").read_text()
