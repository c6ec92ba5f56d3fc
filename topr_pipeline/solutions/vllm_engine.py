"""Sampling with vLLM in this job: continuous batching, on GPUs and CPUs.

vLLM computes in processes of its own, so that its thread pinning, memory binding and patches of
torch touch nothing else, and `close` gives all memory back. They end when this process is killed.
"""

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Sampling
from topr_pipeline.solutions.engine import Completion, Request
from topr_pipeline.solutions.policy_text import PolicyText

ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # forking a process whose torch already runs threads can hang
    "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",
    # FutureWarnings of its imports, and a line about NUMA
    "PYTHONWARNINGS": "ignore::FutureWarning,ignore::UserWarning:multiprocessing.resource_tracker",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
"""Set before vLLM is imported, unless the user's environment says otherwise."""

CPU_MEMORY = 0.4
"""Share of a NUMA node's memory on CPUs: training and others need some, vLLM would take 0.92."""

CPU_BLOCK = 32
"""Tokens. Only whole blocks of a prompt are shared by its samples: with vLLM's own choice, 128,
each of them would compute up to 127 tokens of its prompt anew."""

SEEDS = 2**32
"""numpy takes seeds below this."""


class VllmEngine:
    """Samples through vLLM's offline `LLM`. Keys: `sampling.dtype` and `sampling.vllm`.

    The `n` samples of a request are one vLLM request; prompts that share a beginning are computed
    once (prefix caching). A batch is queued while the scheduler is paused, with an empty prefix
    cache and newly seeded workers, so that equal batches and seeds meet equal conditions: without
    `sampling.stop` they give equal samples on CPUs; on GPUs as far as the kernels are
    deterministic. A stop string is seen outside vLLM's scheduler, a step or several after its
    tokens, and until then its row takes part in what the others draw.
    """

    def __init__(self) -> None:
        """Raises ToprError when vLLM is not installed."""
        if importlib.util.find_spec("vllm") is None:
            raise ToprError(
                "vllm is not installed; sampling.engine 'vllm'; run `make vllm` (CPU) or "
                "`pip install topr_pipeline[vllm]` (GPU), or use sampling.engine: transformers"
            )
        self.llm: Any = None

    def start(self, policy: Path, sampling: Sampling) -> None:
        """Load the policy. Raises ToprError for what vLLM cannot load, or has no memory for."""
        self.text = PolicyText(policy, sampling)
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if os.cpu_count() == 2:  # vLLM would leave one of them to its scheduler
            os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        import vllm  # pyrefly: ignore

        try:
            self.llm = vllm.LLM(**_llm_arguments(policy, sampling, self.text))
        except (RuntimeError, ValueError) as error:
            raise ToprError(
                f"vLLM does not start on {policy}: {error}; sampling.vllm "
                f"{sampling.vllm.model_dump(exclude_none=True)}; its log above says why. Often it "
                "wants less gpu_memory_utilization or max_model_len, or does not know the "
                "architecture (then: sampling.engine: transformers)"
            ) from error
        self.llm.collective_rpc("follow", args=(os.getpid(),))
        self.sampling = sampling

    def generate(self, batch: Sequence[Request], seed: int) -> list[list[Completion]]:
        """`n` samples a request; ToprError, before any, for a prompt that exceeds the context."""
        prompts = [self.text.encoded(r.prompt) for r in batch]
        parameters = [_parameters(r.n, self.sampling, self.text) for r in batch]
        self.llm.collective_rpc("reseed", args=(seed % SEEDS,))
        self.llm.reset_prefix_cache()
        self.llm.sleep(level=0)  # pauses the scheduler alone
        self.llm.enqueue([{"prompt_token_ids": ids} for ids in prompts], parameters, use_tqdm=False)
        self.llm.wake_up(tags=["scheduling"])
        answers = self.llm.wait_for_completion(use_tqdm=False)
        return [
            [
                self.text.completion(ids, list(o.token_ids), list(o.logprobs.logprobs))
                for o in sorted(answer.outputs, key=lambda o: o.index)
            ]
            for ids, answer in zip(prompts, answers, strict=True)
        ]

    def close(self) -> None:
        """End vLLM's processes."""
        if self.llm is not None:
            self.llm.llm_engine.engine_core.shutdown()
            self.llm = None


def _llm_arguments(policy: Path, sampling: Sampling, text: PolicyText) -> dict[str, Any]:
    from vllm.platforms import current_platform  # pyrefly: ignore

    chosen = sampling.vllm.model_dump(exclude_none=True)
    if current_platform.is_cpu():
        chosen.setdefault("gpu_memory_utilization", CPU_MEMORY)
        chosen.setdefault("block_size", CPU_BLOCK)
    return {
        "model": str(policy),
        # vLLM's own "auto" turns fp32 weights, which training saves, into fp16
        "dtype": text.dtype if sampling.dtype == "auto" else sampling.dtype,
        "trust_remote_code": text.trusted,
        "skip_tokenizer_init": not sampling.stop,
        "use_tqdm_on_load": False,
        "enable_prefix_caching": True,
        "logprobs_mode": "raw_logprobs",
        # logits rounded to bf16 alone would shift pi/mu of a few hundred tokens by a factor of two
        "hf_overrides": {"head_dtype": "float32"},
        "worker_extension_cls": "topr_pipeline.solutions.vllm_worker.WorkerExtension",
        **chosen,
    }


def _parameters(n: int, sampling: Sampling, text: PolicyText) -> Any:
    from vllm import SamplingParams  # pyrefly: ignore

    return SamplingParams(
        n=n,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_tokens=sampling.max_tokens,
        logprobs=0,  # of the sampled token alone
        flat_logprobs=True,
        stop=list(sampling.stop),
        stop_token_ids=sorted(text.eos),
        detokenize=bool(sampling.stop),  # only stop strings need the text
    )
