"""SQL over everything that was computed: read-only views of the tables of all experiments.

The views are those of `VIEWS`, with the columns of `tables.py` after `experiment` and `iteration`
(null where a table belongs to no iteration). Their rows are the finished artifacts on disk, whether
fresh or stale. A query sees the views alone: no other file, no network, no writing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import polars as pl

from topr_pipeline.errors import ToprError
from topr_pipeline.tables import (
    EVAL_SCORES,
    MIX,
    PROMPTS,
    REWARDS,
    SOLUTIONS,
    TIMED,
    TRAINING_LOG,
    Table,
    atomic_path,
)


@dataclass(frozen=True)
class View:
    """The tables of one kind: the artifact of that name, or the file `inside` where it is a folder.

    `renamed` gives columns another name where theirs means something else in a view.
    """

    table: Table
    artifact: str
    meaning: str
    inside: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> dict[str, pl.DataType]:
        own = {self.renamed.get(c, c): kind for c, (kind, _) in self.table.columns.items()}
        return {"experiment": pl.String(), "iteration": pl.Int32(), **own}

    def finished(self, data: Path) -> list[Path]:
        """Its files below the data root, of artifacts that were finished."""
        file = f"{self.artifact}/{self.inside}" if self.inside else f"{self.artifact}.parquet"
        manifests = f"{self.artifact}.json"
        once = self.artifact in ("prompts", "eval_prompts")
        below = data.resolve().glob(f"*/{manifests}" if once else f"*/iter_*/{manifests}")
        return [made for m in sorted(below) if (made := m.parent / file).exists()]


VIEWS: Mapping[str, View] = {
    "prompts": View(PROMPTS, "prompts", "training prompts"),
    "eval_prompts": View(PROMPTS, "eval_prompts", "held-out prompts"),
    "solutions": View(SOLUTIONS, "solutions", "what an iteration sampled"),
    "rewards": View(REWARDS, "rewards", "how it was verified"),
    "top_up_solutions": View(
        SOLUTIONS, "top_up_solutions", "further samples of prompts with too few of one kind"
    ),
    "top_up_rewards": View(REWARDS, "top_up_rewards", "how they were verified"),
    "mixes": View(
        MIX,
        "mix",
        "what an iteration was trained on; `sampled_iteration` is the one that sampled a row",
        renamed={"iteration": "sampled_iteration"},
    ),
    "training_log": View(TRAINING_LOG, "checkpoint", "one row an optimiser step", TIMED),
    "eval_scores": View(EVAL_SCORES, "eval_scores", "metrics with intervals", "scores.parquet"),
    "eval_solutions": View(
        SOLUTIONS, "eval_scores", "solutions of the held-out prompts", "solutions.parquet"
    ),
    "eval_rewards": View(REWARDS, "eval_scores", "how they were verified", "rewards.parquet"),
}


def query(
    sql: str,
    data: Path,
    parameters: Mapping[str, object] | None = None,
    most: int | None = None,
) -> pl.DataFrame:
    """The result of one SELECT (DuckDB's SQL) over the views of the data root `data`.

    `parameters` are the values of `$name` in it; of many rows the first `most` are fetched.

    Raises ToprError for anything but one query, for what DuckDB refuses (its own words, with the
    place in the query), and for columns of one name or of a type that no file here can hold.
    """
    with duckdb.connect() as connection:
        try:
            kinds = [statement.type for statement in connection.extract_statements(sql)]
            if kinds != [duckdb.StatementType.SELECT]:
                said = ", ".join(kind.name for kind in kinds) or "nothing"
                raise ToprError(f"one SELECT is wanted, not {said}; views: {', '.join(VIEWS)}")
            _open_views(connection, data)
            found = connection.sql(sql, params=parameters)
            return pl.DataFrame((found.limit(most) if most else found).to_arrow_table())
        except duckdb.Error as error:
            raise ToprError(f"{error}\nViews: {', '.join(VIEWS)}") from error
        except pl.exceptions.PolarsError as error:
            raise ToprError(
                f"the query's columns cannot be read ({error}); give each a name of its own with "
                "AS, and cast what has no type here (CAST(... AS VARCHAR) for an INTERVAL)"
            ) from error


def _open_views(connection: duckdb.DuckDBPyConnection, data: Path) -> None:
    found = {name: view.finished(data) for name, view in VIEWS.items()}
    files = [str(file) for some in found.values() for file in some]
    connection.execute("SET allowed_paths = $files", {"files": files})
    connection.execute("SET enable_external_access = false")
    for name, view in VIEWS.items():
        if found[name]:
            connection.execute(f"CREATE VIEW {name} AS {_select(view, found[name], data)}")
        else:
            connection.register(name, pl.DataFrame(schema=view.columns).to_arrow())
    connection.execute("SET lock_configuration = true")


def _select(view: View, files: list[Path], data: Path) -> str:
    below = f"substr(filename, {len(str(data.resolve())) + 2})"
    own = ", ".join(f'"{c}" AS "{view.renamed.get(c, c)}"' for c in view.table.columns)
    listed = ", ".join("'" + str(file).replace("'", "''") + "'" for file in files)
    return (
        f"SELECT split_part({below}, '/', 1) AS experiment, "
        f"TRY_CAST(regexp_extract({below}, '/iter_([0-9]+)/', 1) AS INTEGER) AS iteration, {own} "
        f"FROM read_parquet([{listed}], filename = true, union_by_name = true)"
    )


def described() -> pl.DataFrame:
    """One row a view: what its rows are, and its columns."""
    rows = [(name, view.meaning, ", ".join(view.columns)) for name, view in VIEWS.items()]
    return pl.DataFrame(rows, schema=["view", "what", "columns"], orient="row")


WRITERS: Mapping[str, Callable[[pl.DataFrame, Path], None]] = {
    ".csv": lambda frame, path: frame.write_csv(path),
    ".parquet": lambda frame, path: frame.write_parquet(path),
    ".jsonl": lambda frame, path: frame.write_ndjson(path),
}


def check_output(path: Path) -> None:
    """Raises ToprError for an ending that no writer knows, and a folder that is not there."""
    if path.suffix not in WRITERS:
        raise ToprError(f"--output {path}: {', '.join(WRITERS)} are written")
    if not path.resolve().parent.is_dir():
        raise ToprError(f"--output {path}: there is no folder {path.parent}")


def write(frame: pl.DataFrame, path: Path) -> None:
    """Write rows as the ending of `path` says, atomically. A CSV file holds no lists: ToprError."""
    nested = [c for c, kind in frame.schema.items() if kind.is_nested()]
    if path.suffix == ".csv" and nested:
        raise ToprError(f"--output {path}: CSV has no lists ({', '.join(nested)}); use .parquet")
    with atomic_path(path) as temporary:
        WRITERS[path.suffix](frame, temporary)
