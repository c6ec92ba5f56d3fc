"""The protocol of a sampling engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from topr_pipeline.experiment import Sampling


@dataclass(frozen=True)
class Request:
    """`n` samples of one prompt; `first` is the sample_index of the first of them.

    An engine need not look at `first`: the store asks for what it lacks, so a prompt's samples may
    come in several requests, also in one batch.
    """

    prompt: str
    n: int
    first: int = 0


@dataclass(frozen=True)
class Completion:
    """One sample. R tokens: `token_ids` and `logprobs` have one entry each per generated token.

    `token_ids` ends in EOS when it was generated (`finish_reason` is then "stop"); `logprobs` are
    the model's own, at T=1 and before top-k and top-p, whatever was sampled with.
    """

    text: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length"]


class Engine(Protocol):
    """Samples from a policy. `start` loads it, once; nothing is loaded before."""

    def start(self, policy: Path, sampling: Sampling) -> None:
        """Load the policy in the folder `policy` (Hugging Face format)."""

    def generate(self, batch: Sequence[Request], seed: int) -> list[list[Completion]]:
        """For each request its n completions; equal for an equal batch and seed."""
        ...

    def close(self) -> None:
        """Give back memory; the engine may be started again."""
