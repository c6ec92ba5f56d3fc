"""The YAML sections of training: the objective and the optimiser's settings."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AllowInfNan, BeforeValidator, Discriminator, Field, Tag, field_validator

from topr_pipeline.section import (
    OPERATIONAL,
    Float,
    Momentum,
    Natural,
    OpenShare,
    Positive,
    PositiveFloat,
    Section,
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


class Training(Section):
    """One epoch over the mix by default. `batch_size` counts samples per optimiser step."""

    objective: Objective = "topr"
    optimizer: Literal["adamw", "adafactor"] = "adamw"
    learning_rate: PositiveFloat = 5e-7
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: Natural = 0
    betas: tuple[Momentum, Momentum] = (0.9, 0.999)
    weight_decay: Annotated[Float, Field(ge=0)] = 0.0
    max_grad_norm: PositiveFloat = 1.0
    epochs: Positive = 1
    batch_size: Positive = 64
    micro_batch_size: Positive = Field(default=64, description="samples per forward pass")
    dtype: Literal["float32", "bfloat16"] = "float32"
    ratio_limits: tuple[Float, Float] = Field(
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
