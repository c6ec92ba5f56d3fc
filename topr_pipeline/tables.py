"""One schema per table, and atomic reads and writes.

A table is a Parquet file with the columns listed here, in this order. It is written to a temporary
name in the same folder and then renamed, so that a reader sees the old file or the new one.
"""

import errno
import hashlib
import importlib.util
import os
import shutil
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from topr_pipeline.errors import ToprError


@dataclass(frozen=True)
class Table:
    """Name, columns (type and meaning) and key of one kind of table."""

    name: str
    columns: Mapping[str, tuple[pl.DataType, str]]
    key: tuple[str, ...]

    @property
    def schema(self) -> pl.Schema:
        return pl.Schema({name: dtype for name, (dtype, _) in self.columns.items()})

    def conform(self, frame: pl.DataFrame) -> pl.DataFrame:
        """`frame` with this table's columns in order, cast to its types.

        Raises ToprError for missing columns, values that do not cast, and repeated or null keys.
        """
        missing = [c for c in self.columns if c not in frame.columns]
        if missing:
            raise ToprError(f"{self.name}: no columns {missing} among {frame.columns}")
        try:
            frame = frame.select(pl.col(n).cast(t) for n, (t, _) in self.columns.items())
        except pl.exceptions.PolarsError as error:
            raise ToprError(f"{self.name}: {error}") from error
        keys = frame.select(self.key)
        if sum(keys.null_count().row(0)):
            raise ToprError(f"{self.name}: null in the key columns {list(self.key)}")
        # Few bytes a row: 64-bit hashes that all differ settle it, and almost always they do.
        if keys.hash_rows().n_unique() < keys.height and keys.is_duplicated().any():
            first = keys.filter(keys.is_duplicated()).row(0)
            raise ToprError(f"{self.name}: {dict(zip(self.key, first, strict=True))} stands twice")
        return frame

    def empty(self) -> pl.DataFrame:
        return pl.DataFrame(schema=self.schema)

    def write(self, frame: pl.DataFrame, path: Path) -> None:
        """Write `frame` atomically.

        Raises ToprError as `conform` does, and when the disk does not take the table.
        """
        frame = self.conform(frame)
        with atomic_path(path) as temporary:
            try:
                frame.write_parquet(temporary, compression="zstd")
            except (pl.exceptions.PolarsError, OSError) as error:
                # Polars hands on what the disk said in its own words, if at all.
                raise unwritable(str(error), path) from error

    def read(self, path: Path) -> pl.DataFrame:
        if not path.exists():
            raise ToprError(f"{self.name}: {path} is missing; materialise it again")
        try:
            frame = pl.read_parquet(path)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise ToprError(
                f"{self.name}: {path} cannot be read ({error}); delete it and materialise it again"
            ) from error
        try:
            return self.conform(frame)
        except ToprError as error:
            raise ToprError(f"{path}: {error}; delete it and materialise it again") from error

    def scan(self, path: Path) -> pl.LazyFrame:
        """The table lazily, to read some columns or rows of one that may not fit into memory.

        Its columns are checked; its keys were when it was written. ToprError as from `read`.
        """
        if not path.exists():
            raise ToprError(f"{self.name}: {path} is missing; materialise it again")
        try:
            frame = pl.scan_parquet(path)
            schema = frame.collect_schema()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise ToprError(
                f"{self.name}: {path} cannot be read ({error}); delete it and materialise it again"
            ) from error
        if schema != self.schema:
            raise ToprError(f"{self.name}: {path} has columns {schema}, not {self.schema}")
        return frame


TEXT, INT, FLOAT = pl.String(), pl.Int32(), pl.Float64()
IDS, LOGPROBS = pl.List(pl.Int32()), pl.List(pl.Float32())

_PROMPT_ID = (TEXT, "hash of the normalised prompt")
_SAMPLE_INDEX = (INT, "which sample of the prompt, from 0")

PROMPTS = Table(
    "prompts",
    {
        "prompt_id": _PROMPT_ID,
        "prompt": (TEXT, "the text that the policy continues"),
        "gold": (TEXT, "the right answer"),
        "source": (TEXT, "generator or file and line that it came from"),
        "split": (TEXT, "train or eval"),
        "meta": (TEXT, "anything else, as JSON"),
    },
    ("prompt_id",),
)
SOLUTIONS = Table(
    "solutions",
    {
        "prompt_id": _PROMPT_ID,
        "sample_index": _SAMPLE_INDEX,
        "text": (TEXT, "the completion, without special tokens"),
        "prompt_token_ids": (IDS, "the prompt as the policy saw it"),
        "token_ids": (IDS, "the completion, with EOS when it was generated"),
        "logprobs": (LOGPROBS, "log mu per completion token: raw, at T=1, before top-k and top-p"),
        "logprob": (FLOAT, "log mu of the whole completion, their sum"),
        "finish_reason": (TEXT, "stop (EOS or a stop string) or length"),
        "policy_version": (TEXT, "content hash of the behaviour policy; null: log mu was given"),
        "fingerprint": (TEXT, "hash of policy and sampling parameters, or of an offline set"),
    },
    ("prompt_id", "sample_index"),
)
REWARDS = Table(
    "rewards",
    {
        "prompt_id": _PROMPT_ID,
        "sample_index": _SAMPLE_INDEX,
        "answer": (TEXT, "the answer found in the completion, null if none"),
        "outcome": (TEXT, "correct, incorrect, invalid, truncated or unverifiable"),
        "reward": (FLOAT, "the outcome's reward; null is never trained on"),
        "verifier": (TEXT, "name and version of the verifier"),
        "detail": (TEXT, "why, where the outcome needs a word"),
    },
    ("prompt_id", "sample_index"),
)
MIX = Table(
    "mix",
    {
        "prompt_id": _PROMPT_ID,
        "sample_index": _SAMPLE_INDEX,
        "iteration": (INT, "the iteration that sampled it"),
        "reward": (FLOAT, "R"),
        "advantage": (FLOAT, "R - c, what is trained on"),
        "prompt_token_ids": (IDS, "the prompt as the policy saw it"),
        "token_ids": (IDS, "the completion, with EOS when it was generated"),
        "logprobs": (LOGPROBS, "log mu per completion token"),
        "logprob": (FLOAT, "log mu of the whole completion"),
    },
    ("iteration", "prompt_id", "sample_index"),
)
EVAL_SCORES = Table(
    "eval_scores",
    {
        "metric": (TEXT, "pass@1, pass@k, maj@k, shares of samples and of prompts, mean_tokens"),
        "value": (FLOAT, "the estimate"),
        "low": (FLOAT, "lower end of the bootstrap interval over prompts"),
        "high": (FLOAT, "upper end"),
        "n": (INT, "prompts"),
    },
    ("metric",),
)
TRAINING_LOG = Table(
    "training_log",
    {
        "step": (INT, "optimiser step, from 1"),
        "loss": (FLOAT, "surrogate loss, mean over the batch's samples"),
        "grad_norm": (FLOAT, "before clipping"),
        "learning_rate": (FLOAT, "of this step"),
        "positives": (INT, "samples with advantage >= 0 in the batch"),
        "negatives": (INT, "samples with advantage < 0 in the batch"),
        "weight_positive": (FLOAT, "mean tapered ratio of the positives; null without any"),
        "weight_negative": (FLOAT, "mean tapered ratio of the negatives; null without any"),
        "vanished_negative": (FLOAT, "share of negatives with weight < 0.05"),
        "log_ratio_positive": (FLOAT, "mean log pi/mu of the positives"),
        "log_ratio_negative": (FLOAT, "mean log pi/mu of the negatives"),
        "entropy": (FLOAT, "of the policy's next-token distribution, mean over completion tokens"),
        "tokens": (INT, "prompt and completion tokens of the batch's samples"),
        "computed_tokens": (INT, "the same with a shared prompt counted once: what was computed"),
        "tokens_per_s": (FLOAT, "tokens of this step over its seconds"),
        "seconds": (FLOAT, "of training so far, without what a kill undid"),
    },
    ("step",),
)

OUTCOMES = ("correct", "incorrect", "invalid", "truncated", "unverifiable")


@contextmanager
def atomic_path(path: Path) -> Generator[Path]:
    """A temporary file or folder name beside `path`, renamed to `path` when the block succeeds.

    An existing folder is moved aside first and removed after, since a rename cannot replace it.
    Raises ToprError when the disk is full or cannot be written to.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            if path.is_dir():
                old = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.old.tmp")
                os.replace(path, old)
                os.replace(temporary, path)
                remove(old)
            else:
                os.replace(temporary, path)
        finally:
            remove(temporary)


_DISK = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file is larger than allowed here",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "there is no permission to write",
    errno.EPERM: "writing is not permitted",
}


@contextmanager
def disk_errors(path: Path) -> Generator[None]:
    """Turn a full or read-only disk into a ToprError that says what to do; other errors pass.

    Of libraries that hand on what the disk said in their own words (safetensors), too.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK:
            raise
        raise unwritable(_DISK[error.errno], error.filename or path) from error
    except Exception as error:
        why = None if isinstance(error, ToprError) else _said_of_disk(str(error))
        if why is None:
            raise
        raise unwritable(why, path) from error


def _said_of_disk(text: str) -> str | None:
    for number, why in _DISK.items():
        if f"{os.strerror(number)} (os error {number})" in text:
            return why
    if os.strerror(errno.ENOSPC) in text:
        return _DISK[errno.ENOSPC]
    return None


def unwritable(why: str, path: str | Path) -> ToprError:
    """The error for a disk that takes no more, with the space that is left."""
    there = next((p for p in (Path(path), *Path(path).parents) if p.exists()), Path("/"))
    free = shutil.disk_usage(there).free / 1e6
    return ToprError(
        f"{path} cannot be written: {why} ({free:,.1f} MB free); make room or make it writable, "
        "and run again: what was finished is kept"
    )


def remove(path: Path) -> None:
    """Delete a file or a folder; nothing happens when it is not there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


TIMED = "training_log.parquet"
"""In a checkpoint's folder, but in no hash of it: it holds timings."""

TIMED_SUFFIXES = ("report.html", "costs.parquet", "-time.png")
"""Ends of names of a report's files with timings: of these the name alone is hashed."""


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(p for p in path.rglob("*") if p.is_file() and p.name != TIMED)


def content_hash(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of a folder's files, timings left out."""
    digest = hashlib.sha256()
    for file in _files(path):
        if path.is_dir():
            digest.update(file.relative_to(path).as_posix().encode() + b"\0")
            if file.name.endswith(TIMED_SUFFIXES):
                continue
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:32]


def code_hash(dotted: str) -> str:
    """Hash of the user's module that `python: package.module:name` names; "" for other names."""
    if not dotted.startswith("python:"):
        return ""
    try:
        found = importlib.util.find_spec(dotted.removeprefix("python:").partition(":")[0].strip())
    except ImportError:  # said when it is used, with the key
        return ""
    origin = Path(found.origin) if found and found.origin else None
    return content_hash(origin) if origin and origin.is_file() else ""


def signature(path: Path) -> str:
    """Sizes and times of the same files: differs when one was touched, and costs no reading."""
    files = [(f.relative_to(path).as_posix(), f.stat()) for f in _files(path)]
    said = [f"{name}:{stat.st_size}:{stat.st_mtime_ns}" for name, stat in files]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


def mend(path: Path) -> None:
    """Clear up after writers of `path` that were killed; only for whoever holds its lock.

    A folder that was moved aside is moved back when the new one did not take its place.
    """
    leftovers = sorted(path.parent.glob(f".{path.name}.*.tmp"))
    for aside in [p for p in leftovers if p.name.endswith(".old.tmp")]:
        if not path.exists():
            os.replace(aside, path)
    for leftover in leftovers:
        remove(leftover)
