"""The YAML sections of curation: what of the rewarded solutions is trained on."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from topr_pipeline.section import (
    OPERATIONAL,
    Float,
    Natural,
    OpenShare,
    Positive,
    PositiveFloat,
    Section,
    Share,
)


class Uniform(Section):
    """Keep the first `samples_per_prompt` samples of each prompt (all when null)."""

    strategy: Literal["uniform"]
    samples_per_prompt: Positive | None = None


class AnnaKarenina(Section):
    """Per prompt the first `correct` correct and `incorrect` other samples (null: all)."""

    strategy: Literal["anna_karenina"]
    correct: Positive = 1
    incorrect: Positive | None = None


class Balance(Section):
    """Drop rows of the class that is too large until this share of them has a reward above 0."""

    strategy: Literal["balance"]
    positive_share: OpenShare


class Difficulty(Section):
    """Keep prompts whose solve rate lies in `[lowest, highest]`, both ends included."""

    strategy: Literal["difficulty"]
    solve_rate: tuple[Share, Share]

    @field_validator("solve_rate")
    @classmethod
    def _ordered(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] > value[1]:
            raise ValueError(f"{list(value)} must be [lowest, highest] with lowest <= highest")
        return value


class Dedupe(Section):
    """Of a prompt's samples that are the same, keep the first `keep`.

    The same `completion` (text), the same `wording` (the text but for case, punctuation and white
    space), or the same `answer` (a sample without one is the same as no other).
    """

    strategy: Literal["dedupe"]
    by: Literal["completion", "wording", "answer"] = "completion"
    keep: Positive = 1


class Length(Section):
    """Completions of `min_tokens` to `max_tokens`; longer ones are dropped, or cut off there."""

    strategy: Literal["length"]
    min_tokens: Positive = 1
    max_tokens: Positive | None = None
    over: Literal["drop", "cap"] = "drop"

    @model_validator(mode="after")
    def _some_length(self) -> Self:
        if self.max_tokens is not None and self.max_tokens < self.min_tokens:
            raise ValueError(f"max_tokens {self.max_tokens} is less than min_tokens")
        if self.max_tokens is None and self.over == "cap":
            raise ValueError("over: cap wants max_tokens")
        return self


Rewarded = Literal["correct", "incorrect", "invalid", "truncated"]


class Outcome(Section):
    """Keep samples of these outcomes. Unverifiable ones have no reward and never enter."""

    strategy: Literal["outcome"]
    outcomes: Annotated[tuple[Rewarded, ...], Field(min_length=1)]


class Limit(Section):
    """Keep `rows` rows, chosen at random but always the same ones."""

    strategy: Literal["limit"]
    rows: Positive


class Sql(Section):
    """Keep the rows whose prompt_id and sample_index a SELECT over the view `rows` returns."""

    strategy: Literal["sql"]
    sql: Annotated[str, Field(min_length=1)]

    @field_validator("sql")
    @classmethod
    def _runs(cls, value: str) -> str:
        from topr_pipeline.mixes.sql import refused

        if why := refused(value):
            raise ValueError(why)
        return value


MixStep = Annotated[
    Uniform | AnnaKarenina | Balance | Difficulty | Dedupe | Length | Outcome | Limit | Sql,
    Field(discriminator="strategy"),
]


class TopUp(Section):
    """Further samples, before the mix is made, of prompts with too few of one kind.

    Too few are fewer than `correct` correct samples, or fewer than `incorrect` others, among the
    first `sampling.samples_per_prompt`.
    """

    correct: Natural = 1
    incorrect: Natural = 0
    samples: Positive = Field(default=16, description="further samples of a prompt at most")
    budget: Positive | None = Field(
        default=None, description="further samples in an iteration at most; null: no limit"
    )

    @model_validator(mode="after")
    def _something_lacks(self) -> Self:
        if not self.correct and not self.incorrect:
            raise ValueError("correct: 0 and incorrect: 0 ask for nothing; one must be 1 or more")
        return self


class Replay(Section):
    """Rows of earlier iterations in the mix, each with the log mu that it was sampled with.

    A row of age a (iterations back, at most `iterations`) is as frequent as decay^a fresh ones,
    where there are as many; old rows together are at most `max_share` of the mix.
    """

    iterations: Positive
    decay: Annotated[Float, Field(gt=0, le=1)] = 0.5
    priority: Literal["none", "advantage", "unsolved"] = "none"
    max_share: OpenShare = 0.5


class Mix(Section):
    """What is trained on: ordered curation steps, old rows, then the baseline.

    `effective_positive_share` solves for the baseline c that gives it (paper, section 3.3).
    `min_positives` and `min_negatives` are the blocking check; 0 allows a one-sided mix.
    """

    steps: tuple[MixStep, ...] = (Uniform(strategy="uniform"),)
    replay: Replay | None = None
    baseline: Annotated[Float, Field(ge=-1, le=1)] | None = None
    effective_positive_share: OpenShare | None = None
    memory_gib: PositiveFloat | None = Field(
        default=None,
        description="memory for making the mix; null: half of the machine's",
        json_schema_extra=OPERATIONAL,
    )
    min_positives: Natural = Field(default=1, json_schema_extra=OPERATIONAL)
    min_negatives: Natural = Field(default=1, json_schema_extra=OPERATIONAL)

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if self.baseline is not None and self.effective_positive_share is not None:
            raise ValueError("give baseline or effective_positive_share, not both")
        return self

    @property
    def draws(self) -> bool:
        """Whether anything is chosen at random, so that the experiment's seed matters."""
        return self.replay is not None or any(isinstance(s, Balance | Limit) for s in self.steps)
