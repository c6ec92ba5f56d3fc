"""Sample solutions, only those that are not in the store yet, shard by shard."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Sampling, fingerprint
from topr_pipeline.progress import Progress, quiet
from topr_pipeline.solutions.engine import Completion, Engine, Request
from topr_pipeline.solutions.store import (
    SHARD,
    prompt_hash,
    read_shards,
    set_fingerprint,
    write_shard,
)
from topr_pipeline.tables import PROMPTS, SOLUTIONS

FINISH_REASONS = ("stop", "length")


@dataclass(frozen=True)
class Sampled:
    """The solutions and what they cost: rows found in the store, tokens sampled, engine seconds."""

    frame: pl.DataFrame
    reused: int
    tokens: int
    seconds: float


def sample(
    prompts: pl.DataFrame,
    sampling: Sampling,
    engine: Engine,
    policy: Path,
    policy_version: str,
    store: Path,
    seed: int,
    progress: Progress = quiet,
) -> Sampled:
    """`samples_per_prompt` solutions of every prompt, in the order of `prompts`.

    Args:
        prompts: the prompts table; all of it is sampled (`prompts_per_iteration` is the caller's).
        policy: folder of the policy; `policy_version` is its content hash.
        store: folder of the sample store (see `store.py`). Rows that it holds are reused, others
            are sampled and kept there, a shard at a time.
        progress: called at the start and after every call of the engine with the rows done, the
            reused ones included, and `tokens_per_s`.

    The engine is started only when rows are missing, and closed whatever happens. A run that was
    killed and is run again ends with the table of one that was not, bit for bit. Raises ToprError
    for completions that cannot be trained on; finished shards stay in the store.
    """
    prompts = PROMPTS.conform(prompts)
    key = set_fingerprint(policy_version, sampling, seed)
    request = plan(prompts, sampling)
    rows = _stored(request, store / key)
    missing = request.join(rows, on="row", how="anti", maintain_order="left")
    reused = rows.height
    run = _Run(engine, sampling, policy_version, key, progress, reused, request.height)
    run.report()
    if missing.height:
        del rows  # the shards are read again at the end, so that they need memory only once
        try:
            engine.start(policy, sampling)
            for shard in missing.partition_by("shard", maintain_order=True):
                run.shard(shard, store / key)
        finally:
            engine.close()
        rows = _stored(request, store / key)
    if rows.height != request.height:
        raise ToprError(
            f"{rows.height} rows instead of {request.height} after sampling; {store / key}; "
            "does something else write there? Sample again"
        )
    return Sampled(SOLUTIONS.conform(rows), reused, run.tokens, run.seconds)


def _stored(request: pl.DataFrame, folder: Path) -> pl.DataFrame:
    """The solutions that the set in `folder` holds of the rows asked for, with `row`, in order.

    Only the keys are joined: the large columns are copied once, by one gather.
    """
    rows = read_shards(folder)
    # two runs at once may have sampled a row twice
    keys = rows.select(SHARD.key).with_row_index("at").unique(SHARD.key, keep="first")
    found = request.select("row", *SHARD.key).join(keys, on=SHARD.key, maintain_order="left")
    return rows.select(SOLUTIONS.columns.keys())[found["at"]].with_columns(found["row"])


def plan(prompts: pl.DataFrame, sampling: Sampling) -> pl.DataFrame:
    """The rows asked for: `row`, `shard`, prompt, `sample_index`; a prompt's samples are adjacent.

    The cut into shards depends on the request alone. A shard's work is those of its rows that the
    store lacks; they are written together, so a run that goes on after a kill finds the same work
    in every shard that is left, and makes the same batches with the same seeds.
    """
    hashed = prompts.select(
        "prompt_id",
        "prompt",
        pl.Series("prompt_hash", [prompt_hash(p) for p in prompts["prompt"]], pl.String),
    )
    indices = pl.DataFrame(
        {"sample_index": range(sampling.samples_per_prompt)}, schema={"sample_index": pl.Int32}
    )
    rows = hashed.join(indices, how="cross", maintain_order="left_right").with_row_index("row")
    return rows.with_columns(shard=pl.col("row") // sampling.shard_size)


@dataclass
class _Run:
    """The engine's side of one `sample`: calls it, checks what it returns, counts."""

    engine: Engine
    sampling: Sampling
    policy_version: str
    key: str
    progress: Progress
    done: int
    total: int
    tokens: int = 0
    seconds: float = 0.0

    def report(self) -> None:
        figures = {"tokens_per_s": self.tokens / self.seconds} if self.seconds else {}
        self.progress(self.done, self.total, **figures)

    def shard(self, shard: pl.DataFrame, folder: Path) -> None:
        """Sample and keep a shard's rows, `batch_size` rows a call; each call has its own seed."""
        name = fingerprint(self.key, *shard.select(pl.concat_str(SHARD.key, separator=" "))[:, 0])
        calls = shard.iter_slices(self.sampling.batch_size)
        solutions = [
            self._call(rows, int(fingerprint(name, i)[:8], 16)) for i, rows in enumerate(calls)
        ]
        write_shard(folder, name, pl.concat(solutions))

    def _call(self, rows: pl.DataFrame, seed: int) -> pl.DataFrame:
        prompts = rows.group_by("prompt_id", "prompt", maintain_order=True).len()
        batch = [Request(prompt, n) for _, prompt, n in prompts.iter_rows()]
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
        said = {"policy_version": pl.lit(self.policy_version), "fingerprint": pl.lit(self.key)}
        return rows.with_columns(**columns, **said).select(*SHARD.columns)


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
    if completion.finish_reason not in FINISH_REASONS:
        return f"finish reason {completion.finish_reason!r}"
    return None
