import pytest
from pydantic import ValidationError

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Mix
from topr_pipeline.mixes.sql import view_of

REFUSED = [
    ("SELECT prompt_id FROM rows", "sample_index"),
    ("SELECT * FROM row", "Table with name row does not exist"),
    ("SELECT * FROM rows WHERE rewrad > 0", "rewrad"),
    ("SELECT * FORM rows", "syntax error"),
    ("", "at least 1 character"),
    ("SELECT * FROM rows; SELECT * FROM rows", "2 statements"),
    ("DROP TABLE numbered", "Only SELECT"),
    ("COPY rows TO 'stolen.csv'", "Only SELECT"),
    ("ATTACH 'other.db'", "Only SELECT"),
    ("SET threads = 4", "Only SELECT"),
    ("SELECT * FROM rows, read_csv('/etc/passwd')", "disabled by configuration"),
    ("SELECT * FROM rows, read_text('/etc/passwd')", "disabled by configuration"),
    ("SELECT * FROM rows, read_parquet('https://example.org/x.parquet')", ""),
    ("SELECT * FROM '/etc/passwd'", "does not exist"),
    ("SELECT * FROM rows WHERE random() < 0.5", "random: the same rows must give the same mix"),
    ("SELECT * FROM rows WHERE sample_index < length(current_date::VARCHAR)", "current_date"),
    ("SELECT * FROM rows WHERE age(DATE '2020-01-01') > INTERVAL 1 DAY", "age: the same rows"),
    ("SELECT rows.* FROM rows, duckdb_memory()", "duckdb_memory: the same rows"),
    ("SELECT * FROM numbered ORDER BY number LIMIT 1", "numbered does not exist"),
    ("SELECT * FROM rows USING SAMPLE 10", "limit has a fixed one"),
    ("SELECT * FROM rows TABLESAMPLE 10%", "limit has a fixed one"),
]


@pytest.mark.parametrize(("query", "said"), REFUSED, ids=[q[:40] for q, _ in REFUSED])
def test_a_query_that_cannot_be_a_step_is_refused_with_its_key(query, said):
    steps = [{"strategy": "uniform"}, {"strategy": "sql", "sql": query}]
    with pytest.raises(ValidationError) as refused:
        Mix.model_validate({"steps": steps})
    (error,) = refused.value.errors()
    assert error["loc"] == ("steps", 1, "sql")
    assert said in error["msg"]


MADE_UP = [
    ("SELECT * FROM rows UNION ALL FROM rows", "returns a row twice: prompt_id 'a', sample_index"),
    ("SELECT 'z' AS prompt_id, sample_index FROM rows LIMIT 1", "was not given: prompt_id 'z'"),
    ("SELECT prompt_id, sample_index + 7 AS sample_index FROM rows", "was not given"),
    ("SELECT prompt_id, NULL AS sample_index FROM rows LIMIT 1", "was not given"),
    ("SELECT * FROM rows WHERE error('stop') IS NULL", "stop"),
]


@pytest.mark.parametrize(("query", "said"), MADE_UP, ids=[q[:40] for q, _ in MADE_UP])
def test_a_query_may_neither_repeat_nor_make_up_rows(cut, query, said):
    steps = [{"strategy": "uniform"}, {"strategy": "sql", "sql": query}]
    with pytest.raises(ToprError, match=r"mix\.steps\.1\.sql: ") as error:
        cut({"a": "+-", "b": "+"}, steps=steps)
    assert said in str(error.value)


def test_the_view_shows_the_rows_at_that_point(cut):
    query = (
        "SELECT prompt_id, sample_index FROM rows WHERE iteration = 1 AND reward < 0 "
        "AND solve_rate = 0.5 AND answer = '1' AND length BETWEEN 2 AND 3 "
        "AND (SELECT count(*) FROM rows) = 5 -- a comment at the end"
    )
    steps = [{"strategy": "uniform", "samples_per_prompt": 4}, {"strategy": "sql", "sql": query}]
    assert cut({"a": "+--+-+", "b": "-"}, steps=steps).kept == {"a": [1, 2]}


def test_text_answer_and_length_are_in_the_view_where_they_are_named():
    assert "text" not in view_of("SELECT * FROM rows")
    assert view_of("SELECT * FROM rows r WHERE r.\"TEXT\" LIKE '%=%'")[-1] == "text"
    assert view_of("WITH w AS (SELECT *, length AS n FROM rows) SELECT * FROM w")[-1] == "length"
