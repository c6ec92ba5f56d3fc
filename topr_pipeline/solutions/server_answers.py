"""What completions servers answer, as far as it is read; pydantic refuses everything else."""

from pydantic import BaseModel, StrictInt

TOKEN_ID = "token_id:"
"""How vLLM writes a token under `return_tokens_as_token_ids`."""


class ServedModel(BaseModel):
    """`root` is the folder that a server loaded, `id` the name that requests give."""

    id: str
    root: str | None = None


class ServedModels(BaseModel):
    """The answer of `/models`."""

    data: list[ServedModel] = []


class Logprobs(BaseModel):
    """Per generated token: its log-prob, and how the server writes it."""

    token_logprobs: list[float | None] | None = None
    tokens: list[str] | None = None


class Choice(BaseModel):
    """One sample; `token_ids` are vLLM's extension."""

    index: int = 0
    token_ids: list[StrictInt] | None = None
    finish_reason: str | None = None
    logprobs: Logprobs | None = None

    @property
    def tokens(self) -> list[int] | None:
        """The ids of the generated tokens; None when the server did not say them."""
        if self.token_ids:
            return self.token_ids
        said = (self.logprobs and self.logprobs.tokens) or []
        numbers = [t.removeprefix(TOKEN_ID) for t in said if t.startswith(TOKEN_ID)]
        known = len(numbers) == len(said) and all(n.isdecimal() for n in numbers)
        return [int(n) for n in numbers] if known else None

    @property
    def token_logprobs(self) -> list[float] | None:
        """The log-probs of the generated tokens; None when one is lacking."""
        said = (self.logprobs and self.logprobs.token_logprobs) or []
        values = [v for v in said if v is not None]
        return values if len(values) == len(said) else None


class Choices(BaseModel):
    """The answer of `/completions`."""

    choices: list[Choice] = []
