"""The sample store: finished samples in shards, one folder per set.

    <store>/<fingerprint>/<shard>.parquet      the solutions table and `prompt_hash`

A set holds samples of one distribution: one policy, one way to sample, one seed. Its folder's name
is the fingerprint of these, so that nothing is ever mixed in; a changed key starts a new set and
leaves the old one. Shards are written atomically and named after the rows that were asked for.
"""

import hashlib
import logging
from pathlib import Path

import polars as pl

from topr_pipeline.experiment import Sampling, fingerprint
from topr_pipeline.tables import SOLUTIONS, TEXT, Table

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


def set_fingerprint(policy_version: str, sampling: Sampling, seed: int) -> str:
    """The name of the set: what a sample's distribution depends on, its prompt apart."""
    distribution = sampling.model_copy(update=dict.fromkeys(HOW_MANY))
    return fingerprint(FORMAT, policy_version, distribution, seed)


def prompt_hash(prompt: str) -> str:
    """Hash of the exact text: `prompt_id` is that of the normalised one, which two may share."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


def read_shards(folder: Path) -> pl.DataFrame:
    """All rows of a set, shard by shard. A broken shard is reported and deleted."""
    frames = [f for path in sorted(folder.glob("*.parquet")) if (f := _read(path)) is not None]
    return pl.concat(frames) if frames else SHARD.empty()


def _read(path: Path) -> pl.DataFrame | None:
    # Only what Parquet itself refuses is deleted: a disk or network that fails to read may come
    # back, and raises OSError.
    try:
        return SHARD.conform(pl.read_parquet(path))
    except pl.exceptions.PolarsError as error:
        logger.warning("%s is broken (%s): deleted, its samples are drawn again", path, error)
        path.unlink()
        return None


def write_shard(folder: Path, name: str, rows: pl.DataFrame) -> None:
    """Write one finished shard; a reader sees all of it or nothing."""
    SHARD.write(rows, folder / f"{name}.parquet")
