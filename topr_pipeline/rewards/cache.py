"""Verdicts kept between runs, in a folder, by verifier and version.

    <folder>/<verifier>/<random>.parquet    columns: key, outcome, answer, detail

The key is a hash of (gold, answer). A run adds one file, written aside and then renamed, so that
any number of runs may share the folder. Only verdicts that would be the same on another day are
kept: a pair that was stopped by time or memory, crashed, or made the function raise is tried again.
"""

import contextlib
import hashlib
import re
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from topr_pipeline import tables
from topr_pipeline.rewards.pool import Verdict

SCHEMA = pl.Schema(dict.fromkeys(("key", "outcome", "answer", "detail"), pl.String()))
MOST_FILES = 32
"""Beyond so many files, the next run that adds one merges them."""


def lookup(
    folder: Path | None, verifier: str, pairs: Sequence[tuple[str, str]]
) -> dict[int, Verdict]:
    """The kept verdicts of (answer, gold) pairs, by index."""
    if folder is None or not pairs:
        return {}
    kept = pl.concat([pl.DataFrame(schema=SCHEMA), *_read(_files(folder, verifier)).values()])
    kept = kept.unique("key", keep="first")
    wanted = pl.DataFrame({"key": [_key(p) for p in pairs]}).with_row_index("at")
    found = wanted.join(kept, on="key", how="inner")
    found = found.filter(pl.col("outcome").is_in(tables.OUTCOMES))
    return {at: Verdict(outcome, answer, detail) for at, _, outcome, answer, detail in found.rows()}


def writable(folder: Path | None, verifier: str) -> str | None:
    """Why verdicts cannot be kept in `folder`; None if they can."""
    if folder is None:
        return None
    try:
        _folder(folder, verifier).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=_folder(folder, verifier)):
            return None
    except OSError as error:
        return str(error)


def store(
    folder: Path | None,
    verifier: str,
    pairs: Sequence[tuple[str, str]],
    verdicts: Mapping[int, Verdict],
) -> None:
    """Add the lasting ones of `verdicts`, which are by index into `pairs`."""
    lasting = {at: v for at, v in verdicts.items() if v.lasting}
    if folder is None or not lasting:
        return
    rows = [(_key(pairs[at]), v.outcome, v.answer, v.detail) for at, v in lasting.items()]
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    old = _files(folder, verifier)
    if len(old) >= MOST_FILES:
        read = _read(old)
        frame = pl.concat([frame, *read.values()]).unique("key")
        old = list(read)
    else:
        old = []
    path = _folder(folder, verifier) / f"{uuid.uuid4().hex}.parquet"
    with tables.atomic_path(path) as temporary:
        frame.write_parquet(temporary, compression="zstd")
    for file in old:
        tables.remove(file)


def _folder(folder: Path, verifier: str) -> Path:
    return folder / re.sub(r"[^\w.+-]+", "_", verifier)


def _files(folder: Path, verifier: str) -> list[Path]:
    return sorted(p for p in _folder(folder, verifier).glob("*.parquet") if p.name[0] != ".")


def _read(files: Sequence[Path]) -> dict[Path, pl.DataFrame]:
    """The verdicts in those of `files` that can be read: a lost verdict is computed again."""
    frames = {}
    for file in files:
        with contextlib.suppress(OSError, pl.exceptions.PolarsError):
            frames[file] = pl.read_parquet(file, columns=SCHEMA.names()).cast(SCHEMA)
    return frames


def _key(pair: tuple[str, str]) -> str:
    answer, gold = (part.encode("utf-8", "surrogatepass") for part in pair)
    return hashlib.blake2b(gold + b"\0\0" + answer, digest_size=16).hexdigest()
