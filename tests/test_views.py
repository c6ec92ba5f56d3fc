"""`topr sql`: what a query sees, and what it cannot do."""

from pathlib import Path

import polars as pl
import pytest

from topr_pipeline import views
from topr_pipeline.errors import ToprError
from topr_pipeline.tables import EVAL_SCORES, MIX, PROMPTS


def mix_row(iteration: int, reward: float) -> dict:
    return {
        "prompt_id": "p",
        "sample_index": 0,
        "iteration": iteration,
        "reward": reward,
        "advantage": reward,
        "prompt_token_ids": [1],
        "token_ids": [2, 3],
        "logprobs": [-0.5, -1.0],
        "logprob": -1.5,
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two experiments: `a` with two mixes, `it's` with scores; one mix is not finished."""
    for k in (1, 2):
        MIX.write(pl.DataFrame([mix_row(1, k)]), tmp_path / f"a/iter_0{k}/mix.parquet")
        (tmp_path / f"a/iter_0{k}/mix.json").write_text("{}")
    MIX.write(pl.DataFrame([mix_row(3, 3)]), tmp_path / "a/iter_03/mix.parquet")
    score = {"metric": "pass@1", "value": 0.5, "low": 0.4, "high": 0.6, "n": 8}
    EVAL_SCORES.write(pl.DataFrame([score]), tmp_path / "it's/iter_00/eval_scores/scores.parquet")
    (tmp_path / "it's/iter_00/eval_scores.json").write_text("{}")
    prompt = dict.fromkeys(PROMPTS.columns, "x")
    PROMPTS.write(pl.DataFrame([prompt]), tmp_path / "it's/prompts.parquet")
    (tmp_path / "it's/prompts.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        (
            "SELECT experiment, iteration, sampled_iteration, reward FROM mixes ORDER BY ALL",
            [("a", 1, 1, 1.0), ("a", 2, 1, 2.0)],
        ),
        ("SELECT experiment, iteration, value FROM eval_scores", [("it's", 0, 0.5)]),
        ("SELECT experiment, iteration, gold FROM prompts", [("it's", None, "x")]),
        ("SELECT count(*) FROM solutions", [(0,)]),
        ("WITH m AS (FROM mixes) SELECT sum(len(token_ids)) FROM m", [(4,)]),
    ],
)
def test_views_hold_the_finished_tables_of_all_experiments(sql: str, rows: list, data: Path):
    assert views.query(sql, data).rows() == rows


@pytest.mark.parametrize("name", views.VIEWS)
def test_a_view_has_its_columns_also_without_rows(name: str, tmp_path: Path):
    empty = views.query(f"FROM {name}", tmp_path / "none")
    assert empty.columns == list(views.VIEWS[name].columns)
    assert empty.is_empty()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM '/etc/hostname.csv'",
        "SELECT * FROM read_parquet('https://127.0.0.1/x.parquet')",
        "COPY (SELECT 1) TO 'x.csv'",
        "ATTACH 'x.db'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SELECT 1; DROP VIEW mixes",
        "",
        "SELEC 1",
        "SELECT * FROM nope",
    ],
)
def test_a_query_only_reads_and_only_the_views(sql: str, data: Path):
    with pytest.raises(ToprError, match=r"(?i)views: prompts"):
        views.query(sql, data)


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "rows.jsonl"])
def test_rows_are_written_as_the_ending_says(name: str, data: Path, tmp_path: Path):
    frame = views.query("SELECT prompt_id, reward FROM mixes ORDER BY reward", data)
    views.check_output(tmp_path / name)
    views.write(frame, tmp_path / name)
    readers = {".csv": pl.read_csv, ".parquet": pl.read_parquet, ".jsonl": pl.read_ndjson}
    assert readers[Path(name).suffix](tmp_path / name).rows() == [("p", 1.0), ("p", 2.0)]


def test_an_output_that_cannot_be_written_is_refused(data: Path, tmp_path: Path):
    with pytest.raises(ToprError, match=r"\.csv, \.parquet, \.jsonl are written"):
        views.check_output(tmp_path / "rows.txt")
    with pytest.raises(ToprError, match="there is no folder"):
        views.check_output(tmp_path / "none" / "rows.csv")
    with pytest.raises(ToprError, match=r"CSV has no lists \(token_ids\)"):
        views.write(views.query("SELECT token_ids FROM mixes", data), tmp_path / "rows.csv")


@pytest.mark.parametrize("sql", ["SELECT 1 AS a, 2 AS a", "SELECT INTERVAL 1 DAY AS i"])
def test_columns_that_no_table_holds_are_refused_with_what_to_do(sql: str, data: Path):
    with pytest.raises(ToprError, match=r"cannot be read.*with AS, and cast what has no type"):
        views.query(sql, data)


def test_of_many_rows_the_first_are_fetched_in_the_order_of_the_query(data: Path):
    counted = "SELECT i FROM range(100000000000) t(i)"
    assert views.query(counted, data, most=3).height == 3
    assert views.query("FROM range(9) t(i) ORDER BY i DESC", data, most=2).rows() == [(8,), (7,)]
