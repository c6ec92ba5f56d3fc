"""The mix table: tokens and log mu of the rows that were chosen, sorted, in bounded memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from topr_pipeline.mixes.pool import Pool
from topr_pipeline.mixes.rows import TOKENS, Rewarded
from topr_pipeline.tables import MIX

GROUP_BYTES = 64 << 20
"""Of a row group in memory, about: whoever reads the mix may hold one at a time."""

MOST_RANGES = 256
"""Files that are open at once."""


def write_mix(
    chosen: Sequence[tuple[Rewarded, Pool]],
    baseline: float,
    cap: int | None,
    out: Path,
    folder: Path,
    memory: int,
) -> None:
    """Write the rows of the pools, iterations ascending, with advantages R - `baseline`, to `out`.

    Sorted by (iteration, prompt_id, sample_index). Completions are cut after `cap` tokens. What
    does not fit into `memory` bytes is first taken apart by ranges of prompt_id into files below
    `folder`. The bytes of the table depend on its rows alone.
    """
    expected = sum(rows.row_bytes * pool.tally().rows for rows, pool in chosen)
    ranges = min(-(-int(4 * expected) // memory), MOST_RANGES)
    parts: list[_Part] = []
    size = rows_in_all = 0
    for rows, pool in chosen:
        bounds = rows.prompt_bounds(ranges) if ranges > 1 else []
        paths = [folder / f"{rows.iteration}-{i}.parquet" for i in range(len(bounds) + 1)]
        own = [_Part(path if ranges > 1 else None) for path in paths]
        for frame, cuts in _completed(rows, pool, baseline, cap, bounds):
            size += int(frame.select(_bytes().sum()).item())
            rows_in_all += frame.height
            for part, (low, high) in zip(own, pairwise(cuts), strict=True):
                part.add(frame.slice(low, high - low))
        parts += own
    with _RowGroups(out, max(GROUP_BYTES * rows_in_all // max(size, 1), 1)) as writer:
        for part in parts:
            writer.add(part.sorted())


def _completed(
    rows: Rewarded, pool: Pool, baseline: float, cap: int | None, bounds: Sequence[str]
) -> Iterator[tuple[pl.DataFrame, list[int]]]:
    """Per chunk the rows of the mix in the order of the key, and where its ranges are cut.

    They begin at 0, at the first prompt_id that is not below the first bound, and so on.
    """
    for wide, kept in zip(rows.wide(), pool, strict=True):
        ordered, cuts = _by_prompt(kept, wide["prompt_id"].gather(kept["at"]), bounds)
        frame = wide[ordered["at"]].with_columns(
            ordered["reward"],
            iteration=pl.lit(rows.iteration, pl.Int32),
            advantage=ordered["reward"] - baseline,
        )
        frame = frame if cap is None else _capped(frame, cap)
        yield frame.select(pl.col(name).cast(dtype) for name, dtype in MIX.schema.items()), cuts


def _by_prompt(
    frame: pl.DataFrame, ids_N: pl.Series, bounds: Sequence[str] = ()
) -> tuple[pl.DataFrame, list[int]]:
    """`frame` by prompt_id, and the rows at which the ranges between `bounds` are cut.

    A prompt's rows stand together already, in the order of sample_index. So prompts are sorted and
    not rows, which would cost a comparison of texts each.
    """
    start_U = ids_N.ne_missing(ids_N.shift()).arg_true()
    ids_U = ids_N.gather(start_U)
    first_U = np.append(start_U.to_numpy(), len(ids_N)).astype(np.int64)
    if not ids_U.is_sorted():
        order_U = ids_U.arg_sort().to_numpy()
        length_U = np.diff(first_U)[order_U]
        end_U = np.cumsum(length_U)
        shift_U = first_U[order_U] - (end_U - length_U)
        frame = frame[np.arange(len(ids_N)) + np.repeat(shift_U, length_U)]
        ids_U, first_U = ids_U.gather(order_U), np.append(0, end_U)
    return frame, [0, *(int(first_U[ids_U.search_sorted(b)]) for b in bounds), len(ids_N)]


def _capped(frame: pl.DataFrame, cap: int) -> pl.DataFrame:
    """Completions cut after `cap` tokens; log mu is then that of what is left."""
    head = pl.col("logprobs").list.head(cap)
    cut = pl.col("token_ids").list.len() > cap
    summed = head.cast(pl.List(pl.Float64)).list.sum()
    return frame.with_columns(
        pl.col("token_ids").list.head(cap),
        logprobs=head,
        logprob=pl.when(cut).then(summed).otherwise("logprob"),
    )


def _bytes() -> pl.Expr:
    tokens = [pl.col(c).list.len() * 4 for c in TOKENS if c != "logprob"]
    return pl.sum_horizontal(*tokens).cast(pl.Int64) + 64


@dataclass
class _Part:
    """Rows of one range: in memory, or in a file at `path`."""

    path: Path | None
    frames: list[pl.DataFrame] = field(default_factory=list)
    writer: pq.ParquetWriter | None = None

    def add(self, frame: pl.DataFrame) -> None:
        if self.path is None:
            self.frames.append(frame)
            return
        rows = frame.to_arrow()
        if self.writer is None:
            self.writer = pq.ParquetWriter(self.path, rows.schema, compression="lz4")
        self.writer.write_table(rows)

    def sorted(self) -> pl.DataFrame:
        """All of them in the order of the key; they are then forgotten here."""
        if self.path is not None and self.writer is not None:
            self.writer.close()
            self.frames = [pl.read_parquet(self.path)]
            self.path.unlink()
        frames, self.frames = self.frames, []
        rows = pl.concat(frames) if frames else MIX.empty()
        return _by_prompt(rows, rows["prompt_id"])[0]


class _RowGroups:
    """Writes frames one after another in row groups of `size` rows, however they are cut."""

    def __init__(self, out: Path, size: int):
        self.out, self.size, self.held = out, size, MIX.empty()

    def __enter__(self) -> Self:
        schema = self.held.to_arrow().schema
        self.writer = pq.ParquetWriter(self.out, schema, compression="zstd")
        return self

    def add(self, frame: pl.DataFrame) -> None:
        rows = pl.concat([self.held, frame])
        whole = rows.height - rows.height % self.size
        self._write(rows.head(whole))
        self.held = rows.slice(whole)

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if failed is None:
            self._write(self.held)
        self.writer.close()

    def _write(self, rows: pl.DataFrame) -> None:
        for start in range(0, rows.height, self.size):
            group = rows.slice(start, self.size).rechunk()  # a page ends where an array does
            self.writer.write_table(group.to_arrow(), row_group_size=self.size)
