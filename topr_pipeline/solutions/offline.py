"""Solutions that are there already: read from rows, put into the policy's tokens.

A set may come from anywhere: another policy, people, an earlier experiment (`topr export`).
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import polars as pl
import pyarrow as pa

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Columns, OfflineColumns
from topr_pipeline.prompts.load import column, prompt_id, prompt_text
from topr_pipeline.prompts.values import Record, gold_text, shown
from topr_pipeline.solutions.tokenize import cut_at_stop, prompt_tokens
from topr_pipeline.tables import OUTCOMES, SOLUTIONS

CHUNK = 4096
"""Rows that are taken together."""

ABOVE_ZERO = 1e-3
"""Log-probs of certain tokens may come out so far above 0 by rounding."""

_LISTS = {"token_ids": pa.large_list(pa.int32()), "logprobs": pa.large_list(pa.float32())}
_OTHERS = {"sample_index": pa.int32(), "reward": pa.float64()}
_NAMES = (
    "prompt_id", "sample_index", "source", "text", "finish_reason",
    "token_ids", "logprobs", "reward", "outcome", "answer",
)  # fmt: skip
_SCHEMA = pa.schema([(n, {**_LISTS, **_OTHERS}.get(n, pa.large_string())) for n in _NAMES])

OF_POLICY = ("policy_version", "fingerprint")
"""Columns of solutions that are not known here."""


def read_offline(
    records: Iterable[tuple[str, Record]], prompts: Columns, columns: OfflineColumns
) -> pl.DataFrame:
    """The rows of a set, in order, as they stand there.

    `records` are rows with their source. Returns prompt_id, sample_index (the row's place among
    those of its prompt), source, text, and what the set says of finish_reason, token_ids, logprobs,
    reward, outcome and answer, null where it says nothing. Raises ToprError with row and key for a
    value that cannot be used.
    """
    seen = Counter[str]()
    frames = [pl.from_arrow(_SCHEMA.empty_table())]
    rest = iter(records)
    while some := list(islice(rest, CHUNK)):
        rows = []
        for source, record in some:
            name = prompt_id(prompt_text(record, prompts, source, "prompts"))
            own = {"prompt_id": name, "sample_index": seen[name], "source": source}
            rows.append(own | _Row(record, source, columns).said())
            seen[name] += 1
        frames.append(pl.from_arrow(pa.Table.from_pylist(rows, schema=_SCHEMA)))
    return pl.concat(f for f in frames if isinstance(f, pl.DataFrame))


@dataclass(frozen=True)
class _Row:
    """One row of a set, whose values are looked at."""

    record: Record
    source: str
    columns: OfflineColumns

    def said(self) -> dict[str, Any]:
        reward, outcome = self.reward(), self.word("outcome", OUTCOMES)
        if outcome == "unverifiable" and reward is not None:
            raise self.wrong("reward", "null for what is unverifiable: it is never trained on")
        token_ids, logprobs = self.numbers("token_ids"), self.numbers("logprobs")
        if token_ids and logprobs and len(token_ids) != len(logprobs):
            raise self.wrong("logprobs", f"{len(token_ids)} numbers, one per token of token_ids")
        return {
            "text": self.text(),
            "finish_reason": self.word("finish_reason", ("stop", "length")),
            "token_ids": token_ids,
            "logprobs": logprobs,
            "reward": reward,
            "outcome": outcome,
            "answer": gold_text(self.value("answer")),
        }

    def value(self, what: str) -> Any:
        """Null also where an empty field of a CSV file says so."""
        name = getattr(self.columns, what)
        if name is None:
            return None
        value = column(self.record, name, self.source, f"offline.columns.{what}")
        return None if value == "" and what != "completion" else value

    def text(self) -> str:
        value = self.value("completion")
        if not isinstance(value, str):
            raise self.wrong("completion", "a text")
        return value

    def word(self, what: str, accepted: Sequence[str]) -> str | None:
        value = self.value(what)
        if value is not None and value not in accepted:
            raise self.wrong(what, f"one of {', '.join(accepted)}, or null")
        return value

    def reward(self) -> float | None:
        value = self.value("reward")
        try:
            reward = float(value) if isinstance(value, str) else value
        except ValueError:
            reward = math.nan
        if reward is not None and not _is_number(reward):
            raise self.wrong("reward", "a finite number, or null for what is not trained on")
        return reward

    def numbers(self, what: str) -> list[Any] | None:
        """Token ids or log-probs; in a CSV file a list is JSON in a field."""
        value = self.value(what)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except json.JSONDecodeError:
                raise self.wrong(what, "a list of numbers in JSON") from None
        if value is None:
            return None
        fits, accepted = _FIT[what]
        if not (isinstance(value, list) and value and all(map(fits, value))):
            raise self.wrong(what, f"a list of {accepted}, or null")
        return value

    def wrong(self, what: str, accepted: str) -> ToprError:
        name = getattr(self.columns, what)
        return ToprError(
            f"{self.source}: the {what} is {shown(self.record[name])} "
            f"(offline.columns.{what}: {name}); give {accepted}"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_FIT = {
    "token_ids": (
        lambda v: isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 2**31,
        "token ids, whole numbers from 0",
    ),
    "logprobs": (
        lambda v: _is_number(v) and v <= ABOVE_ZERO,
        "log-probs, finite numbers not above 0",
    ),
}


@dataclass(frozen=True)
class Encoder:
    """A policy's tokenizer, its EOS tokens and context, and `sampling.stop`."""

    tokenizer: Any
    eos: frozenset[int]
    context: int | None = None
    stop: tuple[str, ...] = ()

    @property
    def unknown(self) -> int | None:
        """The token for what the tokenizer does not know; some name EOS, and never need one."""
        token = self.tokenizer.unk_token_id
        return None if token in self.eos else token

    def prompt(self, text: str) -> list[int]:
        """The prompt as every engine reads it."""
        return prompt_tokens(self.tokenizer, text)

    def completions(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of the texts themselves, without EOS."""
        if not texts:
            return []
        return self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]

    def text(self, tokens: Sequence[int]) -> str:
        """What a sampled completion of these tokens would be."""
        ended = tokens[-1] in self.eos
        said = self.tokenizer.decode(
            list(tokens[:-1] if ended else tokens),
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        cut = cut_at_stop(said, self.stop)
        return said if cut is None else cut

    def ends(self, tokens: Sequence[int]) -> bool:
        """Whether they end with EOS or, where there is any, a stop string."""
        if tokens[-1] in self.eos or not self.stop:
            return tokens[-1] in self.eos
        return cut_at_stop(self.tokenizer.decode(list(tokens)), self.stop) is not None


def encoded(rows: pl.DataFrame, prompts: pl.DataFrame, encoder: Encoder) -> Iterator[pl.DataFrame]:
    """`rows` of `read_offline` as solutions, but for OF_POLICY, in the order of the prompts.

    Rows of prompts that are not in the table `prompts` are left out. A complete completion ends in
    EOS. `logprobs` and `logprob` stay null where the set has none. Raises ToprError for token ids
    that do not say the completion, log-probs of another number of tokens, a completion without
    tokens or with what the tokenizer does not know, and one that exceeds the policy's context.
    """
    asked = prompts.select("prompt_id", "prompt")
    joined = asked.join(rows, on="prompt_id", how="inner", maintain_order="left_right")
    prompt_ids: dict[str, list[int]] = {}
    for some in joined.iter_slices(CHUNK):
        own = encoder.completions(some["text"].to_list())
        made = []
        for row, body in zip(some.iter_rows(named=True), own, strict=True):
            if row["prompt_id"] not in prompt_ids:
                prompt_ids = {row["prompt_id"]: encoder.prompt(row["prompt"])}
            made.append(_solution(row, prompt_ids[row["prompt_id"]], body, encoder))
        columns = {name: some[name] for name in ("prompt_id", "sample_index", "text", "logprobs")}
        lists = {
            name: pl.Series(pa.array([m[name] for m in made], _LISTS["token_ids"]))
            for name in ("prompt_token_ids", "token_ids")
        }
        reasons = pl.Series([m["finish_reason"] for m in made], dtype=pl.String)
        frame = pl.DataFrame({**columns, **lists, "finish_reason": reasons})
        # In double precision, of the very values that are stored.
        total = pl.col("logprobs").cast(pl.List(pl.Float64)).list.sum()
        known = pl.when(pl.col("logprobs").is_not_null()).then(total)
        yield frame.with_columns(logprob=known).select(
            c for c in SOLUTIONS.columns if c not in OF_POLICY
        )


def _solution(row: Record, prompt: list[int], body: list[int], encoder: Encoder) -> dict[str, Any]:
    """Tokens and finish reason of one row; `body` are the completion's tokens without EOS."""
    tokens = body if row["token_ids"] is None else row["token_ids"]
    if row["token_ids"] is None:
        reason = row["finish_reason"] or "stop"
        if reason == "stop" and not (body and body[-1] in encoder.eos):
            tokens = [*body, _eos(row, encoder)]
        if encoder.unknown is not None and encoder.unknown in body:
            raise _wrong(row, "completion", "has words that the policy's tokenizer does not know")
    else:
        _check_same(row, body, encoder)
        reason = row["finish_reason"] or ("stop" if encoder.ends(tokens) else "length")
    if not prompt or not tokens:
        which = "completion" if prompt else "prompt"
        raise ToprError(f"{row['source']}: the {which} has no token; take the row out")
    if row["logprobs"] is not None and len(row["logprobs"]) != len(tokens):
        raise _wrong(
            row,
            "logprobs",
            f"are {len(row['logprobs'])} for {len(tokens)} tokens, EOS included; give one a token, "
            "and the token_ids that they are of",
        )
    if encoder.context is not None and len(prompt) + len(tokens) > encoder.context:
        raise _wrong(
            row,
            "completion",
            f"has {len(tokens)} tokens and its prompt {len(prompt)}, more than the policy's "
            f"context of {encoder.context}; take the row out",
        )
    return {"prompt_token_ids": prompt, "token_ids": tokens, "finish_reason": reason}


def _eos(row: Record, encoder: Encoder) -> int:
    own = encoder.tokenizer.eos_token_id
    if own is None:
        raise _wrong(
            row, "completion", "ends, and the policy's tokenizer has no EOS; give token_ids"
        )
    return own


def _check_same(row: Record, body: list[int], encoder: Encoder) -> None:
    """Token ids must be the policy's own: they say the completion, as these or as other tokens."""
    tokens = row["token_ids"]
    if tokens == body or (tokens[:-1] == body and tokens[-1] in encoder.eos):
        return
    known = max(tokens) < len(encoder.tokenizer)
    said = encoder.text(tokens) if known else None
    if said is None or said.strip() != row["text"].strip():
        what = f"say {shown(said)}" if known else f"have an id beyond {len(encoder.tokenizer)}"
        raise _wrong(
            row,
            "token_ids",
            f"{what} where the completion is {shown(row['text'])}; they must be of the policy's "
            "tokenizer, cut by this sampling.stop; else leave out token_ids and logprobs",
        )


def _wrong(row: Record, what: str, said: str) -> ToprError:
    return ToprError(f"{row['source']}: the {what} {said} (offline.columns.{what})")
