"""Sample solutions, only those that are not in the store yet, shard by shard."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Sampling, fingerprint
from topr_pipeline.progress import Progress, quiet
from topr_pipeline.solutions.engine import Completion, Engine, Request
from topr_pipeline.solutions.store import (
    SHARD,
    Found,
    find,
    prompt_hash,
    require_space,
    set_fingerprint,
    write_shard,
)
from topr_pipeline.tables import PROMPTS, SOLUTIONS, atomic_path

FINISH_REASONS = ("stop", "length")
LARGEST_ID = 2**31
ROUNDING = 0.01
"""How far above 0 a log-prob may lie: log-softmax rounds, in half precision too."""
LEAST_SPACE = 1 << 20
"""Bytes that must be free before a shard is sampled, where no larger one was written yet."""


@dataclass(frozen=True)
class Asked:
    """What is to be sampled: `sampling.samples_per_prompt` samples a prompt, or further ones.

    `prompts` is the prompts table, all of which is sampled (`prompts_per_iteration` is the
    caller's); `policy` the policy's folder and `policy_version` its content hash; `store` the
    folder of the sample store (see `store.py`). With `more_P`, further samples are wanted instead,
    so many of each prompt, from sample_index `samples_per_prompt` on.

    The rows are numbered: the samples of prompt 0, those of prompt 1, ... A shard's work is those
    of `shard_size` rows, consecutive in the order of `cut`, that the store lacks. The cut depends
    on what is asked for alone, and a shard's rows are written together, so whoever goes on after a
    kill, or does a part of the shards elsewhere, makes the same calls with the same seeds.
    """

    prompts: pl.DataFrame
    sampling: Sampling
    policy: Path
    policy_version: str
    store: Path
    seed: int
    more_P: np.ndarray | None = None

    @property
    def first(self) -> int:
        """The sample_index from which on samples of each prompt are asked for."""
        return 0 if self.more_P is None else self.sampling.samples_per_prompt

    @property
    def count_P(self) -> np.ndarray:
        """How many samples of each prompt are asked for."""
        if self.more_P is not None:
            return self.more_P
        return np.full(self.prompts.height, self.sampling.samples_per_prompt)

    @property
    def key(self) -> str:
        """The fingerprint of the set."""
        return set_fingerprint(self.policy_version, self.sampling, self.seed)

    def cut(self) -> np.ndarray:
        """The R rows in the order in which they are cut into shards: samples 0-7 of all prompts,
        then 8-15, 16-31, ...: raising 8 to 16, or 16 to 32, leaves whole shards to sample, since
        half a batch costs an engine more than half of the time.
        """
        count_P, first = self.count_P, self.first
        most = int(count_P.max(initial=0))
        block_N = np.array([max(first + i, 7).bit_length() for i in range(most)], np.int8)
        asked_PN = np.arange(most) < count_P[:, None]
        return np.argsort(np.broadcast_to(block_N, asked_PN.shape)[asked_PN], kind="stable")

    def hashed(self) -> pl.DataFrame:
        """prompt_id, prompt and prompt_hash. ToprError for what is no prompts table."""
        prompts = PROMPTS.conform(self.prompts)
        hashes = [prompt_hash(p) for p in prompts["prompt"]]
        return prompts.select("prompt_id", "prompt", pl.Series("prompt_hash", hashes, pl.String))


@dataclass(frozen=True)
class Cost:
    """What sampling cost: samples and tokens drawn, seconds spent in the engine."""

    samples: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Sampled:
    """The solutions in the file `path`: how many, what they consist of, what was drawn for them."""

    path: Path
    rows: int
    tokens: int
    finish_reasons: Mapping[str, int]
    cost: Cost


def sample(asked: Asked, engine: Engine, out: Path, progress: Progress = quiet) -> Sampled:
    """Write the solutions asked for to the Parquet file `out`, in the order of the prompts.

    Rows that the store holds are reused, others are sampled and kept there. `progress` is called
    at the start and after every call of the engine with the rows done, the reused ones included,
    and `tokens_per_s`.

    The engine is started only when rows are missing, and closed whatever happens. A run that was
    killed and is run again ends with the file of one that was not, byte for byte; memory does not
    grow with the number of rows (40 bytes each apart). Raises ToprError for completions that cannot
    be trained on and for a full disk; finished shards stay in the store.
    """
    cost = sample_part(asked, engine, progress=progress)
    found = find(asked.hashed(), asked.first, asked.count_P, asked.store / asked.key)
    if found.missing_R.any():
        raise ToprError(
            f"{found.missing_R.sum()} of {len(found.missing_R)} rows are missing after sampling; "
            f"{asked.store / asked.key}; does something else delete there? Sample again"
        )
    return _written(found, out, cost)


def sample_part(
    asked: Asked, engine: Engine, part: int = 0, of: int = 1, progress: Progress = quiet
) -> Cost:
    """Fill the store with every `of`-th shard, from the one with number `part` on.

    All parts, in whatever order, processes or machines, leave the store that one `sample` leaves.
    The engine and the errors are as in `sample`.
    """
    hashed = asked.hashed()
    found = find(hashed, asked.first, asked.count_P, asked.store / asked.key)
    cut_R = asked.cut()
    shard_R = np.arange(len(cut_R)) // asked.sampling.shard_size
    mine_R = shard_R % of == part
    lacking_R = found.missing_R[cut_R] & mine_R
    missing, shard = cut_R[lacking_R], shard_R[lacking_R]
    total = int(mine_R.sum())
    run = _Run(engine, asked, hashed, progress, total - len(missing), total)
    run.report()
    if len(missing):
        cuts = np.flatnonzero(np.diff(shard)) + 1
        del found, cut_R, mine_R, lacking_R, shard_R, shard
        try:
            engine.start(asked.policy, asked.sampling)
            run.report()
            for rows in np.split(missing, cuts):
                run.shard(rows)
        finally:
            engine.close()
    return Cost(len(missing), run.tokens, run.seconds)


def _written(found: Found, out: Path, cost: Cost) -> Sampled:
    tokens, reasons = 0, Counter[str]()
    schema = SOLUTIONS.empty().to_arrow().schema
    with (
        atomic_path(out) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        for rows in found.frames():
            writer.write_table(rows.to_arrow())
            tokens += int(rows["token_ids"].list.len().sum())
            reasons.update(dict(rows["finish_reason"].value_counts().iter_rows()))
    return Sampled(out, len(found.shard_R), tokens, dict(sorted(reasons.items())), cost)


@dataclass
class _Run:
    """The engine's side: calls it, checks what it returns, keeps it, counts."""

    engine: Engine
    asked: Asked
    prompts: pl.DataFrame
    progress: Progress
    done: int
    total: int
    tokens: int = 0
    seconds: float = 0.0
    largest: int = field(default=LEAST_SPACE, init=False)

    def __post_init__(self) -> None:
        self.sampling, self.key = self.asked.sampling, self.asked.key
        self.folder = self.asked.store / self.key
        self.end_P = np.cumsum(self.asked.count_P)  # rows after those of a prompt
        self.begin_P = self.end_P - self.asked.count_P

    def report(self) -> None:
        figures = {"tokens_per_s": self.tokens / self.seconds} if self.seconds else {}
        self.progress(self.done, self.total, **figures)

    def shard(self, rows: np.ndarray) -> None:
        """Sample and keep a shard's `rows`, call by call; each call has its own seed."""
        require_space(self.folder, self.largest)
        prompt = np.searchsorted(self.end_P, rows, side="right")
        index_R = self.asked.first + rows - self.begin_P[prompt]
        index = pl.Series("sample_index", index_R, pl.Int32)
        keyed = self.prompts[prompt].with_columns(pl.Series("row", rows), index)
        name = fingerprint(self.key, *keyed.select(pl.concat_str(SHARD.key, separator=" "))[:, 0])
        calls = keyed.iter_slices(self.sampling.samples_per_call)
        solutions = [
            self._call(call, int(fingerprint(name, i)[:8], 16)) for i, call in enumerate(calls)
        ]
        self.largest = max(self.largest, write_shard(self.folder, name, pl.concat(solutions)))

    def _call(self, rows: pl.DataFrame, seed: int) -> pl.DataFrame:
        batch = _requests(rows)
        started = time.perf_counter()
        answers = self.engine.generate(batch, seed)
        self.seconds += time.perf_counter() - started
        completions = self._checked(rows, batch, answers)
        self.tokens += sum(len(c.token_ids) for c in completions)
        self.done += rows.height
        self.report()
        return self._solutions(rows, completions)

    def _checked(
        self,
        rows: pl.DataFrame,
        batch: Sequence[Request],
        answers: Sequence[Sequence[Completion]],
    ) -> list[Completion]:
        """The completions in the order of `rows`; ToprError for what cannot be trained on."""
        got, asked = [len(a) for a in answers], [r.n for r in batch]
        if got != asked:
            raise ToprError(
                f"the engine returned {sum(got)} completions for {len(got)} prompts; "
                f"sampling.engine {self.sampling.engine!r}; "
                f"{sum(asked)} for {len(asked)} were asked for, in the order of the requests"
            )
        completions = [c for a in answers for c in a]
        for id_, index, completion in zip(
            rows["prompt_id"], rows["sample_index"], completions, strict=True
        ):
            if wrong := _wrong(completion, self.sampling.max_tokens):
                raise ToprError(
                    f"the engine returned {wrong}; sampling.engine {self.sampling.engine!r}, "
                    f"prompt {id_}, sample {index}; every token needs its id and its log-prob"
                )
        return completions

    def _solutions(self, rows: pl.DataFrame, completions: list[Completion]) -> pl.DataFrame:
        columns = {
            "text": pl.Series([c.text for c in completions], dtype=pl.String),
            "prompt_token_ids": _lists((c.prompt_token_ids for c in completions), pa.int32()),
            "token_ids": _lists((c.token_ids for c in completions), pa.int32()),
            "logprobs": _lists((c.logprobs for c in completions), pa.float32()),
            "finish_reason": pl.Series([c.finish_reason for c in completions], dtype=pl.String),
        }
        # the sum is taken in double precision, of the very values that are stored
        columns["logprob"] = columns["logprobs"].cast(pl.List(pl.Float64)).list.sum()
        version = self.asked.policy_version
        said = {"policy_version": pl.lit(version), "fingerprint": pl.lit(self.key)}
        return rows.with_columns(**columns, **said).select(*SHARD.columns)


def _requests(rows: pl.DataFrame) -> list[Request]:
    """One request for each stretch of consecutive samples of a prompt."""
    begins = (pl.col("row").diff() != 1) | (pl.col("sample_index").diff() != 1)
    stretches = rows.group_by(begins.fill_null(True).cum_sum(), maintain_order=True).agg(
        pl.col("prompt").first(), pl.len(), pl.col("sample_index").first()
    )
    return [Request(prompt, n, first) for _, prompt, n, first in stretches.iter_rows()]


def _lists(rows: Iterable[list[Any]], of: pa.DataType) -> pl.Series:
    # through Arrow: Polars makes a Series of every row, which takes ten times as long
    return pl.Series(pa.array(rows, pa.large_list(of)))


def _wrong(completion: Completion, max_tokens: int) -> str | None:
    """What makes a completion useless for training, in words."""
    tokens, logprobs = completion.token_ids, completion.logprobs
    if not 0 < len(tokens) <= max_tokens:
        return f"{len(tokens)} tokens (max_tokens {max_tokens})"
    if len(logprobs) != len(tokens):
        return f"{len(logprobs)} log-probs for {len(tokens)} tokens"
    if not all(map(math.isfinite, logprobs)):
        return f"log-prob {next(v for v in logprobs if not math.isfinite(v))}"
    if max(logprobs) > ROUNDING:
        return f"log-prob {max(logprobs)}"
    if min(tokens) < 0 or max(tokens) >= LARGEST_ID:
        return f"token ids from {min(tokens)} to {max(tokens)}"
    if completion.finish_reason not in FINISH_REASONS:
        return f"finish reason {completion.finish_reason!r}"
    return None
