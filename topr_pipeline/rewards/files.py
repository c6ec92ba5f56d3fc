"""`topr verify`: grade the completions in a file, outside any experiment."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from topr_pipeline import tables
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Rewards
from topr_pipeline.progress import Progress, quiet
from topr_pipeline.rewards import grading, report
from topr_pipeline.rewards.grading import VerifyReport
from topr_pipeline.rewards.report import Summary

ADDED = ("answer", "outcome", "reward", "detail")
FORMATS = (".jsonl", ".csv", ".parquet")


@dataclass(frozen=True)
class FileSummary:
    """Where the graded rows went, their figures, and how the verdicts came about.

    `reason`: the first row that is `unverifiable`, and why; None if there is none.
    """

    output: Path
    summary: Summary
    report: VerifyReport
    reason: str | None


def verify_file(
    path: Path,
    rewards: Rewards,
    completion: str = "completion",
    gold: str = "gold",
    output: Path | None = None,
    cache: Path | None = None,
    progress: Progress = quiet,
) -> FileSummary:
    """Grade `path` (JSONL, CSV or Parquet) and write it with the columns of `ADDED`.

    Every input column is kept, and the order of the rows; an added column whose name the file has
    already is called `verified_...`. `output` is by default the input's name
    with `.verified` before its ending; its ending chooses the format. A column `finish_reason`, if
    there is one, tells truncated completions. Raises ToprError for a file that cannot be read, a
    missing column, columns that the output would overwrite, and an output that cannot be written,
    before anything is graded.
    """
    output = output or path.with_name(f"{path.stem}.verified{path.suffix}")
    for file in (path, output):
        _format(file)
    frame = _read(path)
    _check_columns(frame, path, completion, gold)
    _check_output(frame, output)
    reason = pl.col("finish_reason") if "finish_reason" in frame.columns else pl.lit(None)
    rows = frame.select(
        text=pl.col(completion).cast(pl.String),
        gold=pl.col(gold).cast(pl.String),
        finish_reason=reason.cast(pl.String),
    )
    graded, how = grading.grade(rows, rewards, cache, progress)
    if graded.height != frame.height:
        raise AssertionError(f"{frame.height} rows gave {graded.height} rewards")
    with tables.atomic_path(output) as temporary:
        _write(
            frame.with_columns(graded.select(ADDED).rename(_names(frame))), temporary, output.suffix
        )
    return FileSummary(output, report.summarise(graded), how, _reason(graded))


def _reason(graded: pl.DataFrame) -> str | None:
    failed = graded.with_row_index("row", 1).filter(pl.col("outcome") == "unverifiable")
    if failed.is_empty():
        return None
    row, detail = failed.select("row", "detail").row(0)
    return f"row {row}: {detail or 'no reason was given'}"


def _check_columns(frame: pl.DataFrame, path: Path, completion: str, gold: str) -> None:
    for option, column in (("--completion", completion), ("--gold", gold)):
        if column not in frame.columns:
            raise ToprError(
                f"{option}: {path} has no column {column!r}; it has {', '.join(frame.columns)}"
            )
        if frame[column].dtype.is_nested():
            raise ToprError(
                f"{option}: column {column!r} of {path} holds {frame[column].dtype}; wanted is text"
            )
    taken = [name for name in _names(frame).values() if name in frame.columns]
    if taken:
        raise ToprError(
            f"{path} already has the columns {', '.join(taken)}, which would be overwritten; "
            "rename or drop them first"
        )


def _names(frame: pl.DataFrame) -> dict[str, str]:
    """What the added columns are called: `verified_answer` if the file has an `answer` already."""
    return {c: f"verified_{c}" if c in frame.columns else c for c in ADDED}


def _check_output(frame: pl.DataFrame, output: Path) -> None:
    """Before hours of grading: a folder and a format that take the output."""
    nested = [c for c, dtype in frame.schema.items() if dtype.is_nested()]
    if nested and output.suffix == ".csv":
        raise ToprError(
            f"{output}: CSV cannot hold the nested columns {nested}; write .jsonl instead"
        )
    if output.is_dir():
        raise ToprError(f"--output {output} cannot be written: it is a folder")
    try:
        output.absolute().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output.absolute().parent):
            pass
    except OSError as error:
        raise ToprError(
            f"--output {output} cannot be written: {error.strerror or error}"
        ) from error


def _format(path: Path) -> str:
    if path.suffix not in FORMATS:
        raise ToprError(f"{path}: the ending {path.suffix!r} is not one of {', '.join(FORMATS)}")
    return path.suffix


def _read(path: Path) -> pl.DataFrame:
    """The table in `path`; every column of a CSV file stays as it is written."""
    try:
        if path.suffix == ".parquet":
            return pl.read_parquet(path)
        if path.suffix == ".csv":
            return pl.read_csv(path, infer_schema=False)
        return pl.read_ndjson(path, infer_schema_length=None)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ToprError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from error


def _write(frame: pl.DataFrame, path: Path, suffix: str) -> None:
    if suffix == ".parquet":
        frame.write_parquet(path, compression="zstd")
    elif suffix == ".jsonl":
        frame.write_ndjson(path)
    else:
        frame.write_csv(path)
