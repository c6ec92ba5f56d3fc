"""Verdicts kept between runs, in a folder, by verifier and version.

    <folder>/<verifier>/<random>.parquet    columns: key, outcome, answer, detail

The key is a hash of (gold, answer). A run adds one file, written aside and then renamed, so that
any number of runs may share the folder. Only verdicts that would be the same on another day are
kept: a pair that was stopped by time or memory, crashed, or made the function raise is tried again.
"""

import hashlib
import re
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
    kept = _read(_files(folder, verifier))
    wanted = pl.DataFrame({"key": [_key(p) for p in pairs]}).with_row_index("at")
    found = wanted.join(kept, on="key", how="inner")
    return {at: Verdict(outcome, answer, detail) for at, _, outcome, answer, detail in found.rows()}


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
        frame = pl.concat([frame, _read(old)]).unique("key")
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


def _read(files: Sequence[Path]) -> pl.DataFrame:
    """The verdicts in `files`, but for files just merged by another run, or damaged."""
    frames = [pl.DataFrame(schema=SCHEMA)]
    for file in files:
        try:
            frames.append(pl.read_parquet(file, columns=SCHEMA.names()).cast(SCHEMA))
        except (OSError, pl.exceptions.PolarsError):
            continue  # a lost verdict is computed again
    return pl.concat(frames).unique("key", keep="first")


def _key(pair: tuple[str, str]) -> str:
    answer, gold = (part.encode("utf-8", "surrogatepass") for part in pair)
    return hashlib.blake2b(gold + b"\0\0" + answer, digest_size=16).hexdigest()
