"""The YAML schema of an experiment: one typed model per stage, and their fingerprints.

An experiment is one `assets/<name>/defs.yaml`; the names here are its keys. Unknown keys and values
out of range are errors. A fingerprint is the hash of just the sections that a stage reads, so that
editing one key makes stale what depends on it and nothing else.
"""

import difflib
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, cast
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails

OPERATIONAL: dict[str, Any] = {"operational": True}
"""Marks a field that says how, not what, to compute: it is left out of every fingerprint."""


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not true or false")
    return value


_Int = Annotated[int, BeforeValidator(_no_bool)]
_Float = Annotated[float, BeforeValidator(_no_bool)]
Positive = Annotated[_Int, Field(ge=1)]
Natural = Annotated[_Int, Field(ge=0)]
PositiveFloat = Annotated[_Float, Field(gt=0)]
Share = Annotated[_Float, Field(ge=0, le=1)]
OpenShare = Annotated[_Float, Field(gt=0, lt=1)]
Momentum = Annotated[_Float, Field(ge=0, lt=1)]


def _known_or_dotted(*names: str) -> AfterValidator:
    def check(value: str) -> str:
        prefix, colon, path = value.partition("python:")
        parts = path.strip().replace(":", ".").split(".")
        dotted = colon and not prefix and path.count(":") == 1
        if value in names or (dotted and all(part.isidentifier() for part in parts)):
            return value.replace(" ", "")
        accepted = ", ".join(names)
        raise ValueError(f"accepted: {accepted}, or 'python: package.module:function'")

    return AfterValidator(check)


EngineName = Annotated[str, _known_or_dotted("transformers", "vllm", "server", "fake")]


def _base_url(value: str) -> str:
    address = urlsplit(value)
    if address.scheme not in ("http", "https") or not address.hostname or address.query:
        raise ValueError("a base URL such as http://127.0.0.1:8000/v1 is wanted")
    if "@" in address.netloc:
        raise ValueError("no credentials in a URL; name a variable in api_key_env")
    return value.rstrip("/")


BaseUrl = Annotated[str, AfterValidator(_base_url)]
VerifierName = Annotated[
    str, _known_or_dotted("gsm8k", "math", "exact", "choice", "verdict", "reasoning_gym")
]


class Section(BaseModel):
    """Base of every section: frozen, finite numbers, unknown keys refused with what is accepted."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="wrap")
    @classmethod
    def _explain_unknown_keys(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(value)
        except ValidationError as error:
            raise ValidationError.from_exception_data(
                error.title, [cls._explained(detail, value) for detail in error.errors()]
            ) from None

    @classmethod
    def _explained(cls, detail: ErrorDetails, value: Any) -> InitErrorDetails:
        loc = _without_union_tags(detail["loc"], value)
        if detail["type"] != "extra_forbidden" or len(loc) != 1:
            return cast(InitErrorDetails, {**detail, "loc": loc})
        key = str(loc[0])
        near = difflib.get_close_matches(key, cls.model_fields, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        message = f"unknown key {key!r}{hint}; accepted: {', '.join(cls.model_fields)}"
        return InitErrorDetails(
            type="value_error",
            loc=loc,
            input=detail["input"],
            ctx={"error": ValueError(message)},
        )


def _without_union_tags(loc: tuple[int | str, ...], value: Any) -> tuple[int | str, ...]:
    """`loc` as the path of keys in the YAML: pydantic adds the tag of a discriminated union."""
    path: list[int | str] = []
    for at, part in enumerate(loc):
        match value:
            case Mapping():
                if part not in value and (at + 1 < len(loc) or part in value.values()):
                    continue
                value = value.get(part)
            case list() | tuple():
                value = value[part] if isinstance(part, int) and part < len(value) else None
            case str() | int() | float():
                continue
        path.append(part)
    return tuple(path)


# ------------------------------------------------------------------------------------- policy


class TinyPolicy(Section):
    """A small Llama-architecture model, pre-trained on noisy demonstrations of `word_problems`."""

    source: Literal["tiny"]
    hidden_size: Positive = 96
    layers: Positive = 2
    heads: Positive = 4
    feed_forward: Positive = 256
    pretrain_steps: Natural = 450
    batch_size: Positive = 64
    learning_rate: PositiveFloat = 4e-3

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"hidden_size {self.hidden_size} must be a multiple of 2 x heads ({2 * self.heads})"
            )
        return self


SavedDtype = Literal["float32", "bfloat16"] | None


class FolderPolicy(Section):
    """A local folder in Hugging Face format; `path` is relative to the project's root."""

    source: Literal["folder"]
    path: str
    dtype: SavedDtype = Field(default=None, description="of the saved weights; null: as they are")
    trust_remote_code: bool = False


class HubPolicy(Section):
    """A model of the Hugging Face Hub; a commit as `revision` never changes, a branch may."""

    source: Literal["hub"]
    id: Annotated[str, Field(pattern=r"^[\w.-]+(/[\w.-]+)?$")]
    revision: str = "main"
    dtype: SavedDtype = Field(default=None, description="of the saved weights; null: as they are")
    trust_remote_code: bool = False


class GgufPolicy(Section):
    """A GGUF file, dequantised: a path, or `package:name/file` in an installed Python package."""

    source: Literal["gguf"]
    path: Annotated[str, Field(pattern=r"\.gguf$")]
    dtype: Literal["float32", "bfloat16"] = "float32"


Policy = Annotated[
    TinyPolicy | FolderPolicy | HubPolicy | GgufPolicy, Field(discriminator="source")
]


# ------------------------------------------------------------------------------------- prompts


class WordProblems(Section):
    """Generated word problems; `split` (null: that of the section) says from which half.

    The halves share no problem, not even under other names or with other things.
    """

    source: Literal["word_problems"]
    count: Positive
    split: Literal["train", "eval"] | None = None
    steps: tuple[Positive, Positive] = (1, 3)
    style: Literal["words", "english"] = Field(
        default="words", description="single words for the tiny policy, or plain English"
    )

    @field_validator("steps")
    @classmethod
    def _ordered(cls, value: tuple[int, int]) -> tuple[int, int]:
        if value[0] > value[1] or value[1] > 5:
            raise ValueError(f"steps {list(value)} must be [fewest, most] with most <= 5")
        return value


class Columns(Section):
    """Which columns hold what; `gold_format: gsm8k` takes what follows `####` in the gold."""

    prompt: str = "prompt"
    gold: str = "gold"
    gold_format: Literal["plain", "gsm8k"] = "plain"


class Rows(Section):
    """Problems that were collected, one a row.

    `doubtful` prompts are those with several golds, and training prompts that are also evaluated
    on; they are refused, or dropped.
    """

    columns: Columns = Columns()
    limit: Positive | None = None
    doubtful: Literal["refuse", "drop"] = "refuse"


class FilePrompts(Rows):
    """JSONL, CSV or Parquet: a file, a folder or a pattern, relative to the project's root."""

    source: Literal["files"]
    path: str


class HubPrompts(Rows):
    """A data set of the Hugging Face Hub, or whatever `datasets.load_dataset` takes as a name."""

    source: Literal["hub"]
    name: str
    config: str | None = None
    split: str
    revision: str | None = None


Prompts = Annotated[WordProblems | FilePrompts | HubPrompts, Field(discriminator="source")]


class Shot(Section):
    """A worked example."""

    prompt: str
    answer: str


class Template(Section):
    """What the policy reads of a question: `text`, worked examples before it, chat turns around it.

    `{prompt}` in `text` is the question, `{answer}` is where the policy goes on (default: after the
    text). `examples` are worked ones, or a file with the columns `prompt` and `answer`.
    """

    text: str = "{prompt}"
    chat: bool = Field(default=False, description="in turns, by the policy's own chat template")
    system: str | None = None
    examples: tuple[Shot, ...] | str = ()
    separator: str = Field(default="\n\n", description="between examples, unless chat")

    @field_validator("text")
    @classmethod
    def _placeholders(cls, value: str) -> str:
        head, _, tail = value.partition("{answer}")
        if head.count("{prompt}") != 1 or "{prompt}" in tail or "{answer}" in tail:
            raise ValueError("one {prompt} is wanted and, after it, at most one {answer}")
        return value


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

    urls: Annotated[tuple[BaseUrl, ...], Field(min_length=1)]
    model: str | None = Field(
        default=None,
        description="name sent to the servers; null: what they serve, if it is the policy's folder",
    )
    api_key_env: str = Field(
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
    temperature: PositiveFloat = 1.0
    top_p: Annotated[_Float, Field(gt=0, le=1)] = 1.0
    top_k: Natural = 0
    max_tokens: Positive = 512
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="texts that end a completion, for policies that say no EOS"
    )
    shard_size: Positive = Field(default=1024, description="samples per shard of the store")
    batch_size: Positive = Field(default=256, description="samples per call of the engine")
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

    @model_validator(mode="after")
    def _server_is_named(self) -> Self:
        if self.engine == "server" and self.server is None:
            raise ValueError("engine: server wants server: {urls: [http://127.0.0.1:8000/v1]}")
        return self


# ------------------------------------------------------------------------------------- rewards


class RewardValues(Section):
    """Reward per outcome; `null` is never trained on, and an unverifiable sample never is."""

    correct: _Float | None = 1.0
    incorrect: _Float | None = -1.0
    invalid: _Float | None = -1.0
    truncated: _Float | None = -1.0
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


# ------------------------------------------------------------------------------------- mix


class Uniform(Section):
    """Keep the first `samples_per_prompt` samples of each prompt (all when null)."""

    strategy: Literal["uniform"]
    samples_per_prompt: Positive | None = None


class AnnaKarenina(Section):
    """Per prompt the first `correct` correct and `incorrect` other samples (null: all)."""

    strategy: Literal["anna_karenina"]
    correct: Positive = 1
    incorrect: Positive | None = None


MixStep = Annotated[Uniform | AnnaKarenina, Field(discriminator="strategy")]


class Mix(Section):
    """What is trained on: ordered curation steps, then the baseline.

    `effective_positive_share` solves for the baseline c that gives it (paper, section 3.3).
    `min_positives` and `min_negatives` are the blocking check; 0 allows a one-sided mix.
    """

    steps: tuple[MixStep, ...] = (Uniform(strategy="uniform"),)
    baseline: Annotated[_Float, Field(ge=-1, le=1)] | None = None
    effective_positive_share: OpenShare | None = None
    min_positives: Natural = Field(default=1, json_schema_extra=OPERATIONAL)
    min_negatives: Natural = Field(default=1, json_schema_extra=OPERATIONAL)

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if self.baseline is not None and self.effective_positive_share is not None:
            raise ValueError("give baseline or effective_positive_share, not both")
        return self


# ------------------------------------------------------------------------------------- training

Bound = Annotated[float, AllowInfNan(True), Field(ge=0), BeforeValidator(_no_bool)]


class Bounds(Section):
    """`[a, b]` for the sequence ratio pi/mu of positive and of negative samples (paper, eq. 8)."""

    positive: tuple[Bound, Bound] = (1.0, 1.0)
    negative: tuple[Bound, Bound] = (0.0, 1.0)

    @field_validator("positive", "negative")
    @classmethod
    def _ordered(cls, value: tuple[float, float]) -> tuple[float, float]:
        if any(map(math.isnan, value)) or value[0] > value[1] or math.isinf(value[0]):
            raise ValueError(f"{list(value)} must be [lower, upper] with finite lower <= upper")
        return value


ObjectiveName = Literal["topr", "positives", "reinforce", "importance_sampling", "tis"]


def _name_or_bounds(value: Any) -> str:
    return "bounds" if isinstance(value, Mapping | Bounds) else "name"


Objective = Annotated[
    Annotated[ObjectiveName, Tag("name")] | Annotated[Bounds, Tag("bounds")],
    Discriminator(_name_or_bounds),
]


class Training(Section):
    """One epoch over the mix by default. `batch_size` counts samples per optimiser step."""

    objective: Objective = "topr"
    optimizer: Literal["adamw", "adafactor"] = "adamw"
    learning_rate: PositiveFloat = 5e-7
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: Natural = 0
    betas: tuple[Momentum, Momentum] = (0.9, 0.999)
    weight_decay: Annotated[_Float, Field(ge=0)] = 0.0
    max_grad_norm: PositiveFloat = 1.0
    epochs: Positive = 1
    batch_size: Positive = 64
    micro_batch_size: Positive = Field(default=64, description="samples per forward pass")
    dtype: Literal["float32", "bfloat16"] = "float32"
    ratio_limits: tuple[_Float, _Float] = Field(
        default=(0.97, 1.03),
        description="mean clipped ratio on the first batch that the blocking check accepts",
        json_schema_extra=OPERATIONAL,
    )

    @field_validator("ratio_limits")
    @classmethod
    def _around_one(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 < value[0] <= 1 <= value[1]:
            raise ValueError(f"{list(value)} must be [lower, upper] with 0 < lower <= 1 <= upper")
        return value


class Evaluation(Section):
    """How a checkpoint is scored on `eval_prompts`; the engine is that of `sampling`."""

    samples_per_prompt: Positive = 8
    temperature: PositiveFloat = 1.0
    top_p: Annotated[_Float, Field(gt=0, le=1)] = 1.0
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
    seed: Annotated[_Int, Field(ge=0, lt=2**31)] = 0
    threads: Positive | None = Field(
        default=None, description="CPU threads of torch; results are equal bit by bit at one count"
    )
    iterations: Annotated[_Int, Field(ge=0, le=999)]
    policy: Policy
    prompts: Prompts
    eval_prompts: Prompts
    template: Template = Template()
    sampling: Sampling = Sampling()
    rewards: Rewards = Rewards()
    mix: Mix = Mix()
    training: Training = Training()
    evaluation: Evaluation = Evaluation()

    def seed_for(self, use: str) -> int:
        """A seed of its own for each use, derived from the experiment's."""
        return int(fingerprint(use, self.seed), 16) % 2**31


def fingerprint(*parts: BaseModel | str | int | float | None) -> str:
    """Hash of what `parts` say, the same on every machine; operational fields are left out."""
    said = [_said(p) if isinstance(p, BaseModel) else p for p in parts]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def _said(model: BaseModel) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and extra.get("operational"):
            continue
        value = getattr(model, name)
        result[name] = _said_value(value)
    return result


def _said_value(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _said(value)
    if isinstance(value, tuple | list):
        return [_said_value(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _said_value(v) for k, v in value.items()}
    return value
