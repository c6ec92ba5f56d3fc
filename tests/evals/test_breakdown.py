import json

import polars as pl
import pytest

from topr_pipeline import tables
from topr_pipeline.evals.breakdown import BREAKDOWN, breakdown, groups
from topr_pipeline.experiment import Evaluation


def prompts(metas):
    rows = [
        dict.fromkeys(tables.PROMPTS.columns, "x")
        | {"prompt_id": f"p{i:02d}", "meta": json.dumps(meta)}
        for i, meta in enumerate(metas)
    ]
    return tables.PROMPTS.conform(pl.DataFrame(rows))


TWENTY = [
    {"level": f"Level {1 + i % 2 * 9}", "steps": 1 + i % 4, "solution": f"s{i}", "rate": i % 2 / 3}
    for i in range(20)
]


def test_columns_with_a_few_values_break_down_and_others_do_not():
    found = groups(prompts(TWENTY))
    assert found["column"].unique(maintain_order=True).to_list() == ["level", "steps"]
    assert found.filter(column="level")["group"].unique(maintain_order=True).to_list() == [
        "Level 1",
        "Level 10",
    ]
    assert found.filter(column="steps").height == 20


@pytest.mark.parametrize(
    "metas",
    [
        [{}] * 20,
        [{"level": 1}] * 20,  # all the same
        TWENTY[:9],  # too few prompts a value
        [{"tags": [1]}] * 10 + [{"tags": [2]}] * 10,
        [{"level": None}] * 20,
    ],
)
def test_a_prompt_set_without_such_columns_has_no_breakdown(metas):
    asked = prompts(metas)
    values = asked.select("prompt_id", pl.lit(1.0).alias("pass@1"))
    assert breakdown(values, asked, Evaluation(), 0).equals(BREAKDOWN.empty())


def test_scores_of_a_group_are_means_over_its_prompts():
    asked = prompts(TWENTY)
    values = asked.select(
        "prompt_id",
        pl.int_range(pl.len()).mod(2).cast(pl.Float64).alias("pass@1"),
        pl.when(pl.int_range(pl.len()) % 4 == 3).then(8.0).otherwise(float("nan")).alias("maj@4"),
    )
    table = breakdown(values, asked, Evaluation(bootstrap=50), 0)
    assert table.schema == BREAKDOWN.schema
    levels = table.filter(column="level", metric="pass@1")
    assert levels.select("group", "value", "n").rows() == [("Level 1", 0, 10), ("Level 10", 1, 10)]
    steps = table.filter(column="steps", metric="maj@4")
    assert steps.select("group", "value", "n").rows() == [("4", 8.0, 5)]
