"""The step `sql`: a user's SELECT over the view `rows`, in a DuckDB without files or network.

The view holds the rows of one iteration at that point of `mix.steps`, in the order of prompt_id and
sample_index; its columns are those of `VIEW`. The query runs on one thread, so that it gives the
same rows whatever the machine.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from topr_pipeline.errors import ToprError

if TYPE_CHECKING:
    import duckdb

VIEW: Mapping[str, str] = {
    "prompt_id": "VARCHAR",
    "sample_index": "INTEGER",
    "iteration": "INTEGER",
    "outcome": "VARCHAR",
    "reward": "DOUBLE",
    "solve_rate": "DOUBLE",
    "text": "VARCHAR",
    "answer": "VARCHAR",
    "length": "INTEGER",
}
"""Columns and types. `solve_rate` is of the prompt, over all of its verified samples."""

WHERE_NAMED = ("text", "answer", "length")
"""Columns that are only there, and only read, where the query names them."""

_UNREPEATABLE = {
    "random", "setseed", "uuid", "uuidv4", "uuidv7", "gen_random_uuid", "nextval", "currval",
    "now", "today", "get_current_time", "get_current_timestamp", "transaction_timestamp",
    "current_date", "current_time", "current_timestamp", "current_localtime",
    "current_localtimestamp", "localtime", "localtimestamp", "txid_current", "sleep_ms", "age",
    "current_query_id", "current_connection_id", "current_transaction_id", "duckdb_memory",
    "duckdb_temporary_files", "duckdb_settings", "current_setting",
}  # fmt: skip


def refused(query: str) -> str | None:
    """Why `query` cannot be a step, or None; nothing is read to find out."""
    import duckdb

    try:
        tree = _parsed(query)
        if unrepeatable := sorted(_names(tree) & _UNREPEATABLE):
            return f"{', '.join(unrepeatable)}: the same rows must give the same mix every time"
        if _sampled(tree):
            return "no SAMPLE: it is another one every time; the step limit has a fixed one"
        with duckdb.connect(":memory:") as db:
            # Not of `_make_view`, whose table has the rows in an order that is nobody's business.
            columns = ", ".join(f"CAST(NULL AS {VIEW[c]}) AS {c}" for c in view_of(query))
            db.execute(f"CREATE VIEW rows AS SELECT {columns} WHERE false")
            _lock(db)
            db.execute(_keys_of(query))
    except (ValueError, duckdb.Error) as error:
        first = str(error).split("\n\n")[0].replace("\n", " ")
        offered = ", ".join(VIEW)
        return (
            f"{first}; accepted: one SELECT over the view `rows` ({offered}) that returns "
            "prompt_id and sample_index, without files, extensions and settings"
        )
    return None


def view_of(query: str) -> list[str]:
    """The columns of the view that `query` needs to be given."""
    named = _names(_parsed(query))
    return [column for column in VIEW if column not in WHERE_NAMED or column in named]


def chosen(
    query: str, frames: Iterable[pl.DataFrame], folder: Path, memory: int, key: str
) -> np.ndarray:
    """Which rows the query keeps: their numbers over all `frames`, ascending.

    `frames` hold the columns of `view_of(query)`; they are copied into a database below `folder`,
    which may grow beyond `memory` bytes. Raises ToprError, naming `key`, for a query that fails
    and for rows that it repeats or makes up.
    """
    import duckdb

    columns = view_of(query)
    file = folder / "rows.duckdb"
    config: dict[str, Any] = {
        "threads": 1,
        "memory_limit": f"{max(memory >> 20, 256)}MB",
        "temp_directory": str(folder),
    }
    try:
        with duckdb.connect(str(file), config=config) as db:
            _make_view(db, columns)
            _fill(db, columns, frames)
            _lock(db)
            db.execute(f"CREATE TABLE kept AS {_keys_of(query)}")
            _check(db, key)
            numbers = db.sql("SELECT number FROM numbered SEMI JOIN kept USING (prompt_id, "
                             "sample_index) ORDER BY number")  # fmt: skip
            return numbers.to_arrow_table()["number"].to_numpy()
    except duckdb.Error as error:
        raise ToprError(f"{key}: {error}") from error
    finally:
        file.unlink(missing_ok=True)


def _keys_of(query: str) -> str:
    """`query` ends a line of its own, lest it ends in a comment."""
    return f"SELECT prompt_id, sample_index FROM ({query.rstrip().rstrip(';')}\n)"


def _make_view(db: "duckdb.DuckDBPyConnection", columns: list[str]) -> None:
    typed = ", ".join(f"{column} {VIEW[column]}" for column in columns)
    db.execute(f"CREATE TABLE numbered (number BIGINT, {typed})")
    db.execute(f"CREATE VIEW rows AS SELECT {', '.join(columns)} FROM numbered")


def _fill(
    db: "duckdb.DuckDBPyConnection", columns: list[str], frames: Iterable[pl.DataFrame]
) -> None:
    db.execute("CREATE TABLE unordered AS FROM numbered")
    at = 0
    for frame in frames:
        numbered = frame.select(
            pl.int_range(at, at + pl.len()).alias("number"),
            *(pl.col(c).cast(pl.String) if c == "outcome" else pl.col(c) for c in columns),
        )
        db.register("chunk", numbered.to_arrow())
        db.execute("INSERT INTO unordered FROM chunk")
        db.unregister("chunk")
        at += frame.height
    db.execute("INSERT INTO numbered FROM unordered ORDER BY prompt_id, sample_index")
    db.execute("DROP TABLE unordered")


def _lock(db: "duckdb.DuckDBPyConnection") -> None:
    """Nothing but what is in the database can be read from here on."""
    db.execute("SET enable_external_access = false")
    db.execute("SET lock_configuration = true")


def _check(db: "duckdb.DuckDBPyConnection", key: str) -> None:
    wrong = {
        "returns a row twice": "FROM kept GROUP BY ALL HAVING count(*) > 1",
        "returns a row that it was not given": "FROM kept ANTI JOIN numbered "
        "USING (prompt_id, sample_index)",
    }
    for what, source in wrong.items():
        first = f"SELECT prompt_id, sample_index {source} ORDER BY ALL LIMIT 1"
        if row := db.execute(first).fetchone():
            raise ToprError(
                f"{key}: the query {what}: prompt_id {row[0]!r}, sample_index {row[1]}; "
                "each row that it returns must be one of `rows`, once"
            )


def _parsed(query: str) -> Any:
    """The syntax tree; ValueError when `query` is not one SELECT."""
    import duckdb

    with duckdb.connect(":memory:") as db:
        (said,) = db.execute("SELECT json_serialize_sql(?)", [query]).fetchone() or ("",)
    tree = json.loads(said)
    if tree["error"]:
        raise ValueError(tree["error_message"])
    if len(tree["statements"]) != 1:
        raise ValueError(f"{len(tree['statements'])} statements")
    return tree


def _nodes(tree: Any) -> Iterator[Mapping[str, Any]]:
    match tree:
        case dict():
            yield tree
            for value in tree.values():
                yield from _nodes(value)
        case list():
            for value in tree:
                yield from _nodes(value)


def _names(tree: Any) -> set[str]:
    """Names of functions and columns, in lower case."""
    found: set[str] = set()
    for node in _nodes(tree):
        found |= {node[kind].lower() for kind in ("function_name",) if node.get(kind)}
        found |= {name.lower() for name in node.get("column_names") or ()}
    return found


def _sampled(tree: Any) -> bool:
    return any(node.get("sample") for node in _nodes(tree))
