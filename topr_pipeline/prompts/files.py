"""Read the rows of JSONL, CSV and Parquet files; every complaint names file, row and YAML key."""

import csv
import glob
import io
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from topr_pipeline.errors import ToprError
from topr_pipeline.prompts.jsonl import records_of_jsonl
from topr_pipeline.prompts.values import Record, did_you_mean

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".parquet")
_ACCEPTED = "a .jsonl, .csv or .parquet file, a folder of them, or a pattern"


def read_records(path: str, root: Path, key: str) -> Iterator[tuple[str, Record]]:
    """The rows of all files that `path` names, each with its source, "file:row".

    `path` is a file, a folder (its files and those below it, by name) or a pattern (`data/*.csv`),
    relative to `root`; `key` is the YAML key that holds it. Rows of JSONL and CSV are counted as
    lines of the file, those of Parquet from 1. Raises ToprError for what cannot be read.
    """
    files = found_files(path, root)
    if not files:
        raise _not_found(path, root, key)
    for file in files:
        said = str(file.relative_to(root) if file.is_relative_to(root) else file)
        where = f"{said!r} ({key})"
        if file.suffix.lower() == ".parquet":
            records = _records_of_parquet(file, where)
        elif file.suffix.lower() == ".csv":
            records = _records_of_csv(_content(file, where), said, key)
        elif file.suffix.lower() in SUFFIXES:
            records = records_of_jsonl(_content(file, where), said, key)
        else:
            raise ToprError(f"{where} is of no known kind; give {_ACCEPTED}")
        for row, record in records:
            yield f"{said}:{row}", record


def found_files(path: str, root: Path) -> list[Path]:
    """The files that `path` names, by name; none when there is nothing."""
    place = root / path
    if place.is_file():
        return [place]
    below = place.rglob("*") if place.is_dir() else map(Path, glob.glob(str(place), recursive=True))
    return sorted(
        file
        for file in below
        if file.is_file() and file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
    )


def _not_found(path: str, root: Path, key: str) -> ToprError:
    place = root / path
    if place.is_dir() or glob.has_magic(path):
        return ToprError(f"{path!r} names no file ({key}); give {_ACCEPTED}")
    beside = [p.name for p in place.parent.iterdir()] if place.parent.is_dir() else []
    return ToprError(
        f"{path!r} is not there ({key}); it is looked for from the project's root "
        f"{root}{did_you_mean(place.name, beside)}"
    )


def _content(file: Path, where: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ToprError(f"{where} cannot be read: {error.strerror}; give {_ACCEPTED}") from error


def _records_of_parquet(file: Path, where: str) -> Iterator[tuple[int, Record]]:
    try:
        frame = pl.read_parquet(file)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ToprError(f"{where} cannot be read as Parquet: {error}; give {_ACCEPTED}") from error
    yield from enumerate(frame.iter_rows(named=True), 1)


def _records_of_csv(content: bytes, said: str, key: str) -> Iterator[tuple[int, Record]]:
    """Rows with the line where each begins; the first line that is not blank holds the names."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = content[: error.start].count(b"\n") + 1
        raise ToprError(
            f"{said}:{row} ({key}): byte {content[error.start]:#04x} is not UTF-8; "
            "save the file as UTF-8"
        ) from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    names: list[str] = []
    line = 1
    try:
        for fields in reader:
            begins, line = line, reader.line_num + 1
            if not any(field.strip() for field in fields):
                continue
            where = f"{said}:{begins} ({key})"
            if not names:
                names = _names(fields, where)
            elif len(fields) == len(names):
                yield begins, dict(zip(names, fields, strict=True))
            else:
                raise ToprError(
                    f"{where}: {len(fields)} fields where there are {len(names)} columns, "
                    f"{', '.join(names)}; put a field that holds a comma between quotes"
                )
    except csv.Error as error:
        raise ToprError(f"{said}:{line} ({key}): not CSV: {error}; mend the line") from error


def _names(fields: list[str], where: str) -> list[str]:
    names = [field.strip() for field in fields]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ToprError(f"{where}: columns of one name: {sorted(repeated)}; name them apart")
    return names
