"""The sample store: finished samples in shards, one folder per set.

    <store>/<fingerprint>/<shard>.parquet      the solutions table and `prompt_hash`

A set holds samples of one distribution: one policy, one way to sample, one seed. Its folder's name
is the fingerprint of these, so that nothing is ever mixed in; a changed key starts a new set and
leaves the old one. Shards are written atomically and named after the rows that were asked for, so
that any number of processes may write to one set.

Axes: P prompts; R rows asked for, in order: the samples of prompt 0, then those of prompt 1, ...;
F rows found in shards.
"""

import hashlib
import io
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Sampling, fingerprint
from topr_pipeline.tables import SOLUTIONS, TEXT, Table, atomic_path, disk_errors, unwritable

logger = logging.getLogger(__name__)

FORMAT = "shards-1"
"""Part of every fingerprint: change it when a shard's columns or the meaning of one changes."""

HOW_MANY = ("samples_per_prompt", "prompts_per_iteration", "shard_size", "batch_size")
"""Keys of `sampling` that change how many samples are drawn or how they are grouped.

`batch_size` and `shard_size` change which random numbers a sample gets, not its distribution:
finished samples are kept when they change, and missing ones are drawn in the new grouping.
"""

SHARD = Table(
    "sample store",
    {**SOLUTIONS.columns, "prompt_hash": (TEXT, "hash of the exact prompt text")},
    ("prompt_id", "prompt_hash", "sample_index"),
)

ROW_GROUP = 4096
"""Rows that `Found.frames` gives at a time: the row groups of the solutions table."""

BUDGET = 256 << 20
"""Bytes of rows that are gathered from the shards at a time; the peak is about three times it."""

TOGETHER = 256
"""Shards whose keys are looked up at a time."""


def set_fingerprint(policy_version: str, sampling: Sampling, seed: int) -> str:
    """The name of the set: what a sample's distribution depends on, its prompt apart."""
    distribution = sampling.model_copy(update=dict.fromkeys(HOW_MANY))
    return fingerprint(FORMAT, policy_version, distribution, seed)


def prompt_hash(prompt: str) -> str:
    """Hash of the exact text: `prompt_id` is that of the normalised one, which two may share."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Found:
    """Where the rows asked for lie: `at_R` counts rows in the shard `paths[shard_R]`, -1 none."""

    paths: Sequence[Path]
    shard_R: np.ndarray
    at_R: np.ndarray

    @property
    def missing_R(self) -> np.ndarray:
        """Which rows no shard has, as booleans."""
        return self.shard_R < 0

    def frames(self) -> Iterator[pl.DataFrame]:
        """The rows as solutions, in order, `ROW_GROUP` at a time, in bounded memory.

        A shard is read once for each span of rows that it has a part in: about once when the
        prompts still stand in the order in which they were sampled, whatever the size of the set.
        Raises ToprError for a shard that does not read; it is deleted, to be sampled again.
        """
        span = self._rows_within_budget()
        for start in range(0, len(self.shard_R), span):
            rows = self._gathered(slice(start, start + span))
            yield from rows.iter_slices(ROW_GROUP)

    def _rows_within_budget(self) -> int:
        if not len(self.shard_R):
            return ROW_GROUP
        first = self._shard(int(self.shard_R[0]))
        bytes_per_row = max(first.estimated_size() / first.height, 1)
        return max(int(BUDGET / bytes_per_row / ROW_GROUP), 1) * ROW_GROUP

    def _gathered(self, some: slice) -> pl.DataFrame:
        shard_S, at_S = self.shard_R[some], self.at_R[some]
        by_shard_S = np.argsort(shard_S, kind="stable")
        cuts = np.flatnonzero(np.diff(shard_S[by_shard_S])) + 1
        parts = [
            self._shard(int(shard_S[rows[0]]))[at_S[rows]] for rows in np.split(by_shard_S, cuts)
        ]
        in_order_S = np.empty_like(by_shard_S)
        in_order_S[by_shard_S] = np.arange(len(by_shard_S))
        return pl.concat(parts, rechunk=True)[in_order_S]

    def _shard(self, number: int) -> pl.DataFrame:
        rows = _read(self.paths[number], SOLUTIONS.columns)
        if rows is None:
            raise ToprError(
                f"a shard of the sample store was broken: {self.paths[number]}; it is deleted; "
                "run again to sample its rows anew"
            )
        return rows


def find(prompts: pl.DataFrame, first: int, count_P: np.ndarray, folder: Path) -> Found:
    """Look up samples of `prompts` (prompt_id, prompt_hash) in a set's folder.

    Of prompt p those are asked for from sample_index `first` on, `count_P[p]` of them.

    Only keys are read, and only their places are kept: 8 bytes for each row. A shard that is not
    readable is reported and deleted. Where two runs at once sampled a row twice, one of the two is
    taken, always the same.
    """
    rows = int(count_P.sum())
    shard_R, at_R = np.full(rows, -1, np.int32), np.zeros(rows, np.int32)
    numbered = prompts.select("prompt_id", "prompt_hash").with_columns(
        row_0=pl.Series(np.cumsum(count_P) - count_P - first, dtype=pl.Int64),
        end=pl.Series(first + count_P, dtype=pl.Int64),
    )
    paths: list[Path] = []
    every = sorted(folder.glob("*.parquet"))
    for some in (every[i : i + TOGETHER] for i in range(0, len(every), TOGETHER)):
        read = [(p, keys) for p in some if (keys := _read(p, SHARD.key)) is not None]
        if not read:
            continue
        found = _joined([keys for _, keys in read], numbered, first)
        row_F, which_F, at_F = (found[c].to_numpy() for c in ("row", "which", "at"))
        new_F = shard_R[row_F] < 0
        # backwards: of a row that stands twice the first counts
        row_F, which_F, at_F = (a[new_F][::-1] for a in (row_F, which_F, at_F))
        shard_R[row_F], at_R[row_F] = which_F + len(paths), at_F
        paths += [path for path, _ in read]
    return Found(paths, shard_R, at_R)


def _joined(shards: list[pl.DataFrame], numbered: pl.DataFrame, first: int) -> pl.DataFrame:
    """Of the keys of `shards` those asked for: `row`, `which` shard, and `at` which row of it.

    `numbered` has for each prompt the row that its sample 0 would be, and the `end` of its samples.
    """
    keys = pl.concat(
        keys.with_row_index("at").with_columns(which=pl.lit(i)) for i, keys in enumerate(shards)
    )
    index = pl.col("sample_index")
    wanted = keys.filter(index.is_between(first, numbered["end"].max(), closed="left"))
    found = wanted.join(numbered, on=["prompt_id", "prompt_hash"], maintain_order="left")
    return found.filter(index < pl.col("end")).select(
        (pl.col("row_0") + index).alias("row"), "which", "at"
    )


def _read(path: Path, columns: Iterable[str]) -> pl.DataFrame | None:
    # Only what Parquet itself refuses is deleted: a disk or network that fails to read may come
    # back, and raises OSError.
    try:
        return pl.read_parquet(path, columns=list(columns))
    except FileNotFoundError:  # another run found it broken
        return None
    except pl.exceptions.PolarsError as error:
        logger.warning("%s is broken (%s): deleted, its samples are drawn again", path, error)
        path.unlink(missing_ok=True)
        return None


def forget(folder: Path, first: int) -> None:
    """Delete the shards of a set that hold no sample before sample_index `first`."""
    for path in sorted(folder.glob("*.parquet")):
        keys = _read(path, SHARD.key)
        if keys is not None and bool((keys["sample_index"] >= first).all()):
            path.unlink()


def write_shard(folder: Path, name: str, rows: pl.DataFrame) -> int:
    """Write one finished shard and return its bytes; a reader sees all of it or nothing.

    Raises ToprError when the disk is full or cannot be written to.
    """
    shard = io.BytesIO()
    SHARD.conform(rows).write_parquet(shard, compression="zstd")
    require_space(folder, len(shard.getbuffer()))
    with atomic_path(folder / f"{name}.parquet") as temporary:
        temporary.write_bytes(shard.getbuffer())
    return len(shard.getbuffer())


def require_space(folder: Path, needed: int) -> None:
    """ToprError when `folder` (made if it is not there) cannot take a file of `needed` bytes."""
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise unwritable("it is read-only, or belongs to someone else", folder)
    if shutil.disk_usage(folder).free < needed:
        raise unwritable("the disk is full", folder)
