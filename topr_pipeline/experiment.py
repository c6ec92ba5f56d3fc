"""The YAML schema of an experiment: one typed model per stage, and their fingerprints.

An experiment is one `assets/<name>/defs.yaml`; the names here are its keys. Unknown keys and values
out of range are errors. A fingerprint is the hash of just the sections that a stage reads, so that
editing one key makes stale what depends on it and nothing else.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from topr_pipeline.curation import AnnaKarenina, Mix, MixStep, TopUp, Uniform
from topr_pipeline.inputs import (
    Columns,
    FilePrompts,
    FolderPolicy,
    GgufPolicy,
    HubPolicy,
    HubPrompts,
    Offline,
    OfflineColumns,
    Policy,
    Prompts,
    Rows,
    Shot,
    Template,
    TinyPolicy,
    WordProblems,
)
from topr_pipeline.section import (
    OPERATIONAL,
    Float,
    Int,
    Natural,
    OpenShare,
    Positive,
    PositiveFloat,
    Section,
    Share,
    fingerprint,
    known_or_dotted,
)
from topr_pipeline.training import Bounds, Clipped, Preference, Training

__all__ = [
    "OPERATIONAL",
    "AnnaKarenina",
    "Bounds",
    "Clipped",
    "Columns",
    "Evaluation",
    "Experiment",
    "FilePrompts",
    "FolderPolicy",
    "GgufPolicy",
    "HubPolicy",
    "HubPrompts",
    "Mix",
    "MixStep",
    "Offline",
    "OfflineColumns",
    "Policy",
    "Preference",
    "Prompts",
    "RewardLimits",
    "RewardValues",
    "Rewards",
    "Rows",
    "Sampling",
    "Section",
    "Server",
    "Shot",
    "Template",
    "TinyPolicy",
    "TopUp",
    "Training",
    "Uniform",
    "Vllm",
    "WordProblems",
    "fingerprint",
]

Temperature = Annotated[Float, Field(ge=0.01)]
"""vLLM would take less for 0.01, and logits divided by very little overflow."""

EngineName = Annotated[str, known_or_dotted("transformers", "vllm", "server", "fake")]


def _base_url(value: str) -> str:
    address = urlsplit(value)
    if address.scheme not in ("http", "https") or not address.hostname or address.query:
        raise ValueError("a base URL such as http://127.0.0.1:8000/v1 is wanted")
    _ = address.port  # a ValueError where it is none
    if "@" in address.netloc:
        raise ValueError("no credentials in a URL; name a variable in api_key_env")
    return value.rstrip("/")


BaseUrl = Annotated[str, AfterValidator(_base_url)]
VerifierName = Annotated[
    str, known_or_dotted("gsm8k", "math", "exact", "choice", "verdict", "reasoning_gym")
]


# ------------------------------------------------------------------------------------- sampling


class Vllm(Section):
    """How vLLM runs (`engine: vllm`); null is vLLM's own choice.

    None of it changes what is sampled, rounding apart, so that an edit starts no new set. Several
    whole copies of a model, on as many GPUs, are `sampling.shards` or several servers.
    """

    tensor_parallel_size: Positive = 1
    pipeline_parallel_size: Positive = 1
    gpu_memory_utilization: OpenShare | None = Field(
        default=None,
        description="share of a GPU's memory; on CPUs, of a NUMA node's (null: 0.4 there)",
    )
    max_model_len: Positive | None = Field(default=None, description="null: the policy's context")
    max_num_seqs: Positive | None = Field(default=None, description="samples in flight")
    enforce_eager: bool = Field(default=False, description="true: no compilation, a faster start")


class Server(Section):
    """OpenAI-compatible completions servers (`engine: server`) that all serve the policy."""

    secretive = True

    urls: Annotated[tuple[BaseUrl, ...], Field(min_length=1)]
    model: str | None = Field(
        default=None,
        description="name sent to the servers; null: what they serve, if it is the policy's folder",
    )
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        default="OPENAI_API_KEY", description="environment variable with the key, if there is one"
    )
    concurrency: Positive = Field(default=32, description="requests in flight, over all servers")
    timeout: PositiveFloat = Field(default=600.0, description="seconds for one request")
    retries: Natural = Field(default=5, description="after 429, 5xx or a lost connection")
    seeded: bool = Field(
        default=False, description="send a seed a request; vLLM on CPUs does not survive one"
    )


class Sampling(Section):
    """How solutions are sampled. `top_k: 0` means no top-k."""

    engine: EngineName = "transformers"
    prompts_per_iteration: Positive | None = None
    samples_per_prompt: Positive = 8
    temperature: Temperature = 1.0
    top_p: Annotated[Float, Field(gt=0, le=1)] = 1.0
    top_k: Natural = 0
    max_tokens: Positive = 512
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="texts that end a completion, for policies that say no EOS"
    )
    shard_size: Positive = Field(default=1024, description="samples per shard of the store")
    batch_size: Positive | None = Field(
        default=None,
        description="samples per call of the engine; null: 256, through vllm and server a shard's",
    )
    shards: Positive = Field(
        default=1,
        description="Dagster steps that share an iteration's sampling, each with its own engine",
        json_schema_extra=OPERATIONAL,
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="of the model in the engine; auto: that of its stored weights"
    )
    vllm: Vllm = Field(default=Vllm(), json_schema_extra=OPERATIONAL)
    server: Server | None = Field(default=None, json_schema_extra=OPERATIONAL)

    @property
    def samples_per_call(self) -> int:
        """vLLM and servers fill up by themselves, and wait for the last ones only once."""
        together = self.shard_size if self.engine in ("vllm", "server") else 256
        return self.batch_size or together

    def context(self, of_policy: int | None) -> int | None:
        """The longest sequence, in tokens: the policy's, unless vLLM is given less; None: any."""
        own = self.vllm.max_model_len if self.engine == "vllm" else None
        return min((n for n in (own, of_policy) if n is not None), default=None)

    @model_validator(mode="after")
    def _server_is_named(self) -> Self:
        if self.engine == "server" and self.server is None:
            raise ValueError("engine: server wants server: {urls: [http://127.0.0.1:8000/v1]}")
        return self


# ------------------------------------------------------------------------------------- rewards


class RewardValues(Section):
    """Reward per outcome; `null` is never trained on, and an unverifiable sample never is."""

    correct: Float | None = 1.0
    incorrect: Float | None = -1.0
    invalid: Float | None = -1.0
    truncated: Float | None = -1.0
    unverifiable: None = None


class RewardLimits(Section):
    """Largest share of an outcome before the blocking check stops the iteration."""

    unverifiable: Share = 0.01
    truncated: Share = 1.0
    invalid: Share = 1.0


class Rewards(Section):
    """How completions are verified and what each outcome is worth."""

    verifier: VerifierName = "gsm8k"
    timeout_seconds: PositiveFloat = Field(default=5.0, description="wall clock per pair")
    workers: Positive | None = Field(
        default=None,
        description="processes for slow pairs; null: one per CPU",
        json_schema_extra=OPERATIONAL,
    )
    memory_mib: Natural = Field(
        default=2048,
        description="address space of a worker; 0: no limit",
        json_schema_extra=OPERATIONAL,
    )
    values: RewardValues = RewardValues()
    limits: RewardLimits = Field(default=RewardLimits(), json_schema_extra=OPERATIONAL)


# ------------------------------------------------------------------------------------- evals


class Evaluation(Section):
    """How a checkpoint is scored on `eval_prompts`; the engine is that of `sampling`."""

    samples_per_prompt: Positive = 8
    temperature: Temperature = 1.0
    top_p: Annotated[Float, Field(gt=0, le=1)] = 1.0
    top_k: Natural = 0
    max_tokens: Positive | None = Field(default=None, description="null: that of sampling")
    k: tuple[Positive, ...] = Field(
        default=(), description="k of pass@k and maj@k; [] is samples_per_prompt"
    )
    bootstrap: Positive = 1000
    confidence: OpenShare = 0.95

    @model_validator(mode="after")
    def _k_within(self) -> Self:
        if self.k and max(self.k) > self.samples_per_prompt:
            raise ValueError(
                f"k {max(self.k)} is more than samples_per_prompt {self.samples_per_prompt}"
            )
        return self

    def sampling(self, base: Sampling) -> Sampling:
        """The sampling section with this section's keys laid over it; all eval prompts are used."""
        return base.model_copy(
            update={
                "prompts_per_iteration": None,
                "samples_per_prompt": self.samples_per_prompt,
                "temperature": self.temperature,
                "top_p": self.top_p,
                "top_k": self.top_k,
                "max_tokens": self.max_tokens or base.max_tokens,
            }
        )


class Experiment(Section):
    """One experiment: everything under `attributes:` of its `defs.yaml`."""

    description: str = ""
    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = {}
    seed: Annotated[Int, Field(ge=0, lt=2**31)] = 0
    threads: Positive | None = Field(
        default=None, description="CPU threads of torch; results are equal bit by bit at one count"
    )
    iterations: Annotated[Int, Field(ge=0, le=999)]
    policy: Policy
    prompts: Prompts
    eval_prompts: Prompts
    offline: Offline | None = None
    template: Template = Template()
    sampling: Sampling = Sampling()
    rewards: Rewards = Rewards()
    top_up: TopUp | None = None
    mix: Mix = Mix()
    training: Training = Training()
    evaluation: Evaluation = Evaluation()

    @model_validator(mode="after")
    def _golds_where_verified(self) -> Self:
        offline, prompts, held_out = self.offline, self.prompts, self.eval_prompts
        if offline and not isinstance(prompts, Rows):
            raise ValueError("offline: its rows are those of prompts; prompts.source: files or hub")
        if offline and self.top_up and self.iterations <= offline.iterations:
            raise ValueError("top_up: every iteration is offline, so that nothing is sampled")
        if isinstance(held_out, Rows) and held_out.columns.gold is None:
            raise ValueError("eval_prompts.columns.gold: answers are verified against golds")
        given = offline and offline.columns.reward and self.iterations <= offline.iterations
        if isinstance(prompts, Rows) and prompts.columns.gold is None and not given:
            raise ValueError(
                "prompts.columns.gold: null is accepted where every iteration trains on rewards "
                "that are given (offline.columns.reward, offline.iterations)"
            )
        return self

    def is_offline(self, iteration: int | None) -> bool:
        """Whether an iteration trains on solutions that are there already."""
        return self.offline is not None and 1 <= (iteration or 0) <= self.offline.iterations

    def is_topped_up(self, iteration: int) -> bool:
        """Whether an iteration samples further; what is there already stays as it is."""
        return self.top_up is not None and not self.is_offline(iteration)

    def is_on_policy(self, iteration: int | None) -> bool:
        """Whether log mu of an iteration's samples is that of the policy that it starts from.

        So it is of what that policy sampled, and in the first iteration of what it was asked about.
        """
        if self.offline is None or not self.is_offline(iteration):
            return True
        return iteration == 1 and self.offline.columns.logprobs is None

    def seed_for(self, use: str) -> int:
        """A seed of its own for each use, derived from the experiment's."""
        return int(fingerprint(use, self.seed), 16) % 2**31
