"""The mix table: tokens and log mu of the rows that were chosen, sorted, in bounded memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import polars as pl
import pyarrow as pa
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
        for frame in _completed(rows, pool, baseline, cap):
            size += int(frame.select(_bytes().sum()).item())
            rows_in_all += frame.height
            for part, piece in zip(own, _ranged(frame, bounds), strict=True):
                part.add(piece)
        parts += own
    with _RowGroups(out, max(GROUP_BYTES * rows_in_all // max(size, 1), 1)) as writer:
        for part in parts:
            writer.add(part.sorted())


def _completed(
    rows: Rewarded, pool: Pool, baseline: float, cap: int | None
) -> Iterator[pl.DataFrame]:
    """Per chunk the rows of the mix."""
    for wide, kept in zip(rows.wide(), pool, strict=True):
        frame = wide[kept["at"]].with_columns(
            kept["reward"],
            iteration=pl.lit(rows.iteration, pl.Int32),
            advantage=kept["reward"] - baseline,
        )
        frame = frame if cap is None else _capped(frame, cap)
        yield frame.select(pl.col(name).cast(dtype) for name, dtype in MIX.schema.items())


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


def _ranged(frame: pl.DataFrame, bounds: Sequence[str]) -> Iterator[pl.DataFrame]:
    """`frame` in pieces of prompt_id below the first bound, below the second, ..., the rest."""
    if not bounds:
        yield frame
        return
    runs = frame["prompt_id"].rle().struct.unnest()
    piece = pl.Series(bounds).search_sorted(runs["value"], side="right")
    piece_N = np.repeat(piece.to_numpy(), runs["len"].to_numpy())
    for number in range(len(bounds) + 1):
        yield frame[np.flatnonzero(piece_N == number)]


def _by_key(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows of one iteration sorted by KEY.

    Each prompt stands in one piece already, in the order of sample_index, so that only the pieces
    are sorted: several times faster than by the key of every row.
    """
    runs = frame["prompt_id"].rle().struct.unnest()
    order_U = runs["value"].arg_sort().to_numpy()
    size_U = runs["len"].cast(pl.Int64).to_numpy()
    start_U, size_U = (np.cumsum(size_U) - size_U)[order_U], size_U[order_U]
    moved_U = start_U - (np.cumsum(size_U) - size_U)
    return frame[np.repeat(moved_U, size_U) + np.arange(frame.height)]


@dataclass
class _Part:
    """Rows of one range: in memory, or in a file at `path`."""

    path: Path | None
    frames: list[pl.DataFrame] = field(default_factory=list)
    writer: pa.RecordBatchFileWriter | None = None

    def add(self, frame: pl.DataFrame) -> None:
        if self.path is None:
            self.frames.append(frame)
            return
        rows = frame.to_arrow()
        if self.writer is None:
            lz4 = pa.ipc.IpcWriteOptions(compression="lz4")
            self.writer = pa.ipc.new_file(self.path, rows.schema, options=lz4)
        self.writer.write_table(rows)

    def sorted(self) -> pl.DataFrame:
        """All of them in the order of the key; they are then forgotten here."""
        if self.path is not None and self.writer is not None:
            self.writer.close()
            self.frames = [pl.read_ipc(self.path)]
            self.path.unlink()
        frames, self.frames = self.frames, []
        return _by_key(pl.concat(frames).rechunk()) if frames else MIX.empty()


class _RowGroups:
    """Writes frames one after another in row groups of `size` rows, however they are cut."""

    def __init__(self, out: Path, size: int):
        self.out, self.size, self.held = out, size, MIX.empty()

    def __enter__(self) -> Self:
        schema = self.held.to_arrow().schema
        texts = [f.name for f in schema if pa.types.is_large_string(f.type)]
        self.writer = pq.ParquetWriter(self.out, schema, compression="zstd", use_dictionary=texts)
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
        if rows.height:
            self.writer.write_table(rows.to_arrow(), row_group_size=self.size)
