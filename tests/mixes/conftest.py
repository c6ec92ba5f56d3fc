"""Solutions and rewards made from letters, and mixes of them."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars as pl
import pytest

from topr_pipeline.experiment import Mix, RewardValues
from topr_pipeline.mixes import Curated, Source, curate
from topr_pipeline.tables import MIX, REWARDS, SOLUTIONS

LETTERS = {
    "+": "correct", "-": "incorrect", "i": "invalid", "t": "truncated", "u": "unverifiable"
}  # fmt: skip
Prompts = Mapping[str, str]
Shuffle = Callable[[pl.DataFrame], pl.DataFrame]


def rewarded(
    prompts: Prompts,
    values: RewardValues = RewardValues(),  # noqa: B008
    texts: Mapping[str, list[str]] | None = None,
    answers: Mapping[str, list[str | None]] | None = None,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Solutions and rewards of {prompt_id: one letter per sample}; sample i has i + 1 tokens."""
    worth = values.model_dump()
    rows = [
        {
            "prompt_id": prompt,
            "sample_index": i,
            "outcome": LETTERS[letter],
            "text": (texts or {}).get(prompt, [f"so {i}" for i in range(99)])[i],
            "answer": (answers or {}).get(prompt, ["1"] * 99)[i],
            "token_ids": [7] * i + [i],
            "logprobs": [-1.0] * i + [-0.5 - i],
        }
        for prompt, letters in prompts.items()
        for i, letter in enumerate(letters)
    ]
    schema = {
        "prompt_id": pl.String, "sample_index": pl.Int32, "outcome": pl.String, "text": pl.String,
        "answer": pl.String, "token_ids": pl.List(pl.Int32), "logprobs": pl.List(pl.Float32),
    }  # fmt: skip
    frame = pl.DataFrame(rows, schema=schema)
    rewards = frame.with_columns(
        reward=pl.Series([worth[o] for o in frame["outcome"]], dtype=pl.Float64),
        verifier=pl.lit("test/1"),
        detail=pl.lit(None, pl.String),
    )
    solutions = frame.with_columns(
        prompt_token_ids=pl.concat_list(pl.lit(1), pl.lit(2)),
        logprob=pl.col("logprobs").list.sum().cast(pl.Float64),
        finish_reason=pl.lit("stop"),
        policy_version=pl.lit("v"),
        fingerprint=pl.lit("f"),
    )
    return SOLUTIONS.conform(solutions), REWARDS.conform(rewards)


@dataclass
class Mixed:
    """A mix, and how it came about."""

    frame: pl.DataFrame
    curated: Curated
    content: bytes

    @property
    def kept(self) -> dict[str, list[int]]:
        """Sample indices by prompt."""
        grouped = self.frame.group_by("prompt_id", maintain_order=True)
        return {str(key[0]): group["sample_index"].to_list() for key, group in grouped}

    @property
    def rows(self) -> set[tuple[int, str, int]]:
        """Keys."""
        return set(self.frame.select(MIX.key).rows())


Tables = tuple[pl.DataFrame, pl.DataFrame]


def mixed(
    tables: Mapping[int, Tables],
    mix: Mix,
    seed: int = 0,
    further: Mapping[int, Tables] = MappingProxyType({}),
) -> Mixed:
    """The mix of the newest of the iterations {iteration: (solutions, rewards)}.

    `further` are the samples of a top-up.
    """

    def written(at: int, which: Mapping[int, Tables], name: str) -> tuple[Path, Path]:
        paths = folder / f"s{at}{name}.parquet", folder / f"r{at}{name}.parquet"
        for table, frame, path in zip((SOLUTIONS, REWARDS), which[at], paths, strict=True):
            table.write(frame, path)
        return paths

    with tempfile.TemporaryDirectory() as name:
        folder, sources = Path(name), []
        for at in tables:
            more = written(at, further, "+") if at in further else None
            sources.append(Source(at, *written(at, tables, ""), more))
        out = folder / ".mix.parquet.tmp"
        curated = curate(sources, mix, out, seed)
        assert sorted(folder.glob(".*")) == [out], "something was left behind"
        return Mixed(MIX.read(out), curated, out.read_bytes())


@pytest.fixture
def cut() -> Callable[..., Mixed]:
    """`cut(prompts, steps=[...], **mix keys)`: the mix of iteration 1."""

    def cut(prompts: Prompts, values: RewardValues | None = None, **keys: Any) -> Mixed:
        made = {name: keys.pop(name) for name in ("texts", "answers") if name in keys}
        tables = rewarded(prompts, values or RewardValues(), **made)
        return mixed({1: tables}, Mix.model_validate(keys))

    return cut
