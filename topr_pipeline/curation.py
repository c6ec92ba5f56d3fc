"""The YAML sections of curation: what of the rewarded solutions is trained on."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from topr_pipeline.section import OPERATIONAL, Float, Natural, OpenShare, Positive, Section


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
    baseline: Annotated[Float, Field(ge=-1, le=1)] | None = None
    effective_positive_share: OpenShare | None = None
    min_positives: Natural = Field(default=1, json_schema_extra=OPERATIONAL)
    min_negatives: Natural = Field(default=1, json_schema_extra=OPERATIONAL)

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if self.baseline is not None and self.effective_positive_share is not None:
            raise ValueError("give baseline or effective_positive_share, not both")
        return self
