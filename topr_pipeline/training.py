"""The YAML sections of training: the objective and the optimiser's settings."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AllowInfNan,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from topr_pipeline.section import (
    OPERATIONAL,
    Float,
    Momentum,
    Natural,
    OpenShare,
    Positive,
    PositiveFloat,
    Section,
    Share,
    known_or_dotted,
    no_bool,
)

Bound = Annotated[float, AllowInfNan(True), Field(ge=0), BeforeValidator(no_bool)]


class Bounds(Section):
    """`[a, b]` for the ratio pi/mu of positive and of negative samples (paper, eq. 8).

    The ratio is that of whole sequences. `length_normalized` takes its n-th root, n the sequence's
    tokens, which is not TOPR: a policy that left a sample behind keeps training on it.
    """

    positive: tuple[Bound, Bound] = (1.0, 1.0)
    negative: tuple[Bound, Bound] = (0.0, 1.0)
    length_normalized: bool = False

    @field_validator("positive", "negative")
    @classmethod
    def _ordered(cls, value: tuple[float, float]) -> tuple[float, float]:
        if any(map(math.isnan, value)) or value[0] > value[1] or math.isinf(value[0]):
            raise ValueError(f"{list(value)} must be [lower, upper] with finite lower <= upper")
        return value


class Clipped(Section):
    """`ppo` or `grpo` with another clip range: the ratio in [1 - epsilon, 1 + epsilon]."""

    name: Literal["ppo", "grpo"]
    epsilon: OpenShare = 0.2


class Preference(Section):
    """`dpo` with another strength of its implicit KL penalty."""

    name: Literal["dpo"]
    beta: PositiveFloat = 0.1


OBJECTIVES = (
    "topr",
    "positives",
    "reinforce",
    "importance_sampling",
    "tis",
    "ppo",
    "grpo",
    "dpo",
)


def _kind_of_objective(value: Any) -> str:
    if isinstance(value, Clipped | Preference):
        value = {"name": value.name}
    if isinstance(value, Mapping) and "name" in value:
        return "preference" if value["name"] == "dpo" else "clipped"
    return "bounds" if isinstance(value, Mapping | Bounds) else "name"


Objective = Annotated[
    Annotated[str, known_or_dotted(*OBJECTIVES), Tag("name")]
    | Annotated[Bounds, Tag("bounds")]
    | Annotated[Clipped, Tag("clipped")]
    | Annotated[Preference, Tag("preference")],
    Discriminator(_kind_of_objective),
]


BitsAndBytes = Literal[
    "ademamix", "adamw_8bit", "adamw_bnb_8bit", "paged_adamw_32bit", "paged_adamw_8bit",
    "ademamix_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit",
    "lion_32bit", "lion_8bit", "paged_lion_32bit", "paged_lion_8bit",
    "rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit",
]  # fmt: skip
"""Names of transformers' `OptimizerNames` that want the package bitsandbytes."""

OptimizerName = Literal[
    "adamw", "adafactor", "sgd", "adagrad", "rmsprop", "adamw_torch", "adamw_torch_fused",
    BitsAndBytes,
]  # fmt: skip
"""`adamw` is `adamw_torch_fused`; the others are names of transformers' `OptimizerNames`. Those
whose step needs a word before and after (schedule-free ones) are left out."""


class Launch(Section):
    """How many processes train together, and whether each holds all weights or a shard (FSDP2)."""

    processes: Positive = 1
    fsdp: bool = Field(default=False, description="shard weights, gradients and optimiser state")


class Lora(Section):
    """Train low-rank updates of weights (peft) instead of the weights; merged when saved."""

    rank: Positive = 16
    alpha: Positive = 32
    targets: tuple[str, ...] = Field(
        default=(), description="names of linear layers, e.g. q_proj; []: all but the LM head"
    )


def _operational(default: Any, description: str) -> Any:
    return Field(default=default, description=description, json_schema_extra=OPERATIONAL)


class Training(Section):
    """One epoch over the mix by default. `batch_size` counts samples per optimiser step.

    What is operational changes results by rounding at most.
    """

    objective: Objective = "topr"
    optimizer: OptimizerName = "adamw"
    learning_rate: PositiveFloat = 5e-7
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: Natural = 0
    betas: tuple[Momentum, Momentum] = (0.9, 0.999)
    weight_decay: Annotated[Float, Field(ge=0)] = 0.0
    max_grad_norm: PositiveFloat = 1.0
    epochs: Positive = 1
    batch_size: Positive = 64
    shuffle: Literal["prompts", "samples"] = Field(
        default="prompts",
        description="prompts: a prompt's samples stay together, computed once; samples: all mixed",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="of the computation; weights and optimiser are fp32"
    )
    lora: Lora | None = None
    recompute_behaviour: bool = Field(
        default=False,
        description="take log mu of the newest iteration's samples from the starting policy",
    )
    tokens_per_forward: Positive = _operational(16384, "computed at once, in each process")
    gradient_checkpointing: bool = _operational(False, "less memory, about a third slower")
    launch: Launch = _operational(Launch(), "of more than one process")
    save_steps: Positive | None = _operational(None, "keep a state to resume from every so often")
    save_minutes: Annotated[Float, Field(ge=0)] | None = _operational(
        10.0, "the same by time; 0: at each step; both null: never"
    )
    report_to: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = _operational(
        (), "figures of each step go there too"
    )
    ratio_limits: tuple[Float, Float] = _operational(
        (0.97, 1.03), "mean clipped ratio on the first batch that the blocking check accepts"
    )
    max_missing_logprobs: Share = _operational(
        0.01, "largest share of completion tokens without log mu; they count as ratio 1"
    )

    @field_validator("ratio_limits")
    @classmethod
    def _around_one(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 < value[0] <= 1 <= value[1]:
            raise ValueError(f"{list(value)} must be [lower, upper] with 0 < lower <= 1 <= upper")
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.launch.fsdp and self.launch.processes == 1:
            raise ValueError("launch.fsdp shards over processes: launch.processes: 2 or more")
        if self.launch.fsdp and self.recompute_behaviour:
            raise ValueError("recompute_behaviour wants the whole policy in one process: no fsdp")
        if self.launch.fsdp and self.lora is not None:
            raise ValueError("lora merges into the whole policy in one process: no launch.fsdp")
        return self
