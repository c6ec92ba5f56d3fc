"""Sections of the YAML that say what goes in: the base policy, the prompts and how they are put."""

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from topr_pipeline.section import Natural, Positive, PositiveFloat, Section

Named = Annotated[str, Field(min_length=1)]
"""A path; an empty one would be the project's root."""

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
    path: Named
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
    gold: str | None = Field(
        default="gold", description="null: there is none, where `offline` gives the rewards"
    )
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
    path: Named


class HubPrompts(Rows):
    """A data set of the Hugging Face Hub, or whatever `datasets.load_dataset` takes as a name."""

    source: Literal["hub"]
    name: str
    config: str | None = None
    split: str
    revision: str | None = None


Prompts = Annotated[WordProblems | FilePrompts | HubPrompts, Field(discriminator="source")]


class OfflineColumns(Section):
    """Which columns of `prompts` hold what of a solution; null: there is none.

    Without `reward`, completions are verified against the gold; without `outcome` it is told by the
    reward. Without `token_ids` the policy's tokenizer makes them; without `logprobs` (log mu of the
    tokens) the base policy does.
    """

    completion: str = "completion"
    reward: str | None = "reward"
    outcome: str | None = None
    answer: str | None = None
    finish_reason: str | None = Field(
        default=None, description="stop or length; null: told by token_ids, else all are complete"
    )
    token_ids: str | None = None
    logprobs: str | None = None

    @property
    def named(self) -> frozenset[str]:
        """The columns that are read."""
        return frozenset(name for _, name in self if name is not None)

    @model_validator(mode="after")
    def _of_a_reward(self) -> Self:
        if self.reward is None and (self.outcome or self.answer):
            raise ValueError("outcome and answer are read beside a reward; name its column too")
        return self


class Offline(Section):
    """Solutions that are there already: every row of `prompts` is one.

    The first `iterations` iterations train on them and sample nothing; later ones sample.
    """

    columns: OfflineColumns = OfflineColumns()
    iterations: Positive = 1
    rendered: bool = Field(
        default=False, description="the prompts are as the policy reads them: no template"
    )


class Shot(Section):
    """A worked example."""

    prompt: str
    answer: str


Examples = Annotated[
    Annotated[tuple[Shot, ...], Tag("list")] | Annotated[Named, Tag("file")],
    Discriminator(lambda value: "file" if isinstance(value, str) else "list"),
]


class Template(Section):
    """What the policy reads of a question: `text`, worked examples before it, chat turns around it.

    `{prompt}` in `text` is the question, `{answer}` is where the policy goes on (default: after the
    text). `examples` are worked ones, or a file with the columns `prompt` and `answer`.
    """

    text: str = "{prompt}"
    chat: bool = Field(default=False, description="in turns, by the policy's own chat template")
    system: str | None = None
    examples: Examples = ()
    separator: str = Field(default="\n\n", description="between examples, unless chat")

    @field_validator("text")
    @classmethod
    def _placeholders(cls, value: str) -> str:
        head, _, tail = value.partition("{answer}")
        if head.count("{prompt}") != 1 or "{prompt}" in tail or "{answer}" in tail:
            raise ValueError("one {prompt} is wanted and, after it, at most one {answer}")
        return value
