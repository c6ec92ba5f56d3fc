"""The rows of one iteration that are still in: chunk by chunk, in memory or on disk."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from topr_pipeline.mixes.draw import key_numbers, lowest, reseeded, weighted

POSITIVE = pl.col("reward") > 0


@dataclass(frozen=True)
class Tally:
    """How many rows are in, of how many prompts, and how many have a reward above 0."""

    rows: int = 0
    prompts: int = 0
    positives: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.rows + other.rows,
            self.prompts + other.prompts,
            self.positives + other.positives,
        )


def tally(rows: pl.DataFrame) -> Tally:
    """Of rows whose prompts stand together."""
    prompts = (pl.col("prompt").diff() != 0).sum() + pl.len().clip(0, 1)
    counted = rows.select(pl.len(), prompts=prompts, positives=POSITIVE.sum())
    return Tally(*counted.row(0))


@dataclass
class Pool:
    """Frames, one per chunk, of which those beyond `memory` bytes lie in files below `folder`."""

    folder: Path
    memory: int
    frames: list[pl.DataFrame | Path] = field(default_factory=list)
    held: int = 0

    def add(self, frame: pl.DataFrame) -> None:
        """One chunk more."""
        size = int(frame.estimated_size())
        if self.held + size <= self.memory:
            self.frames.append(frame)
            self.held += size
            return
        self.folder.mkdir(exist_ok=True)
        path = self.folder / f"{len(self.frames):06d}.arrow"
        frame.write_ipc(path)
        self.frames.append(path)

    def __iter__(self) -> Iterator[pl.DataFrame]:
        for frame in self.frames:
            if isinstance(frame, Path):
                yield pl.read_ipc(frame)
            else:
                yield frame

    def tally(self) -> Tally:
        """Of all rows."""
        return sum(map(tally, self), Tally())

    def replaced(self, by: Callable[[pl.DataFrame], pl.DataFrame]) -> "Pool":
        """The pool with `by(frame)` for each frame; this one is used up."""
        new = Pool(self.folder.with_name(self.folder.name + "+"), self.memory)
        for i, frame in enumerate(self):
            old, self.frames[i] = self.frames[i], frame.clear()
            new.add(by(frame))
            if isinstance(old, Path):
                old.unlink()
        return new

    def drawn(self, count: int, seed: int, among: pl.Expr, weight: str | None = None) -> "Pool":
        """`count` of the rows that are `among` some, at random, and all of the others.

        Without `weight`, a column, each is as likely as another. Needs the columns of the key.
        """
        total = sum(frame.select(among.sum()).item() for frame in self)
        if count >= total:
            return self

        def numbers(frame: pl.DataFrame) -> np.ndarray:
            number_N = reseeded(key_numbers(frame["prompt_id"], frame["sample_index"]), seed)
            return weighted(number_N, frame[weight].to_numpy()) if weight else number_N

        limit = lowest(lambda: (numbers(frame.filter(among)) for frame in self), count)

        def chosen(frame: pl.DataFrame) -> pl.DataFrame:
            if limit is None:
                return frame.filter(~among)
            return frame.filter(~among | pl.Series(numbers(frame) <= limit))

        return self.replaced(chosen)

    def numbered(self, numbers_K: np.ndarray) -> "Pool":
        """Only the rows with these numbers, ascending, counted over all frames."""
        starts = iter(np.cumsum([0, *(frame.height for frame in self)]).tolist())

        def chosen(frame: pl.DataFrame) -> pl.DataFrame:
            start = next(starts)
            low, high = np.searchsorted(numbers_K, [start, start + frame.height])
            return frame[numbers_K[low:high] - start]

        return self.replaced(chosen)


def counted(frames: Iterable[pl.DataFrame], column: str) -> dict:
    """How often each value of a column occurs, in the order of the values."""
    found = [frame.group_by(column).len() for frame in frames]
    total = pl.concat(found).group_by(column).agg(pl.col("len").sum()).sort(column)
    return dict(total.iter_rows())
