from dataclasses import replace

import polars as pl
import pytest

from topr_pipeline import tables
from topr_pipeline.errors import ToprError
from topr_pipeline.report.scores import (
    SCORES,
    STEPS,
    all_differences,
    all_scores,
    markdown_table,
    reading,
    score_table,
    steps,
)


def scored(pass_at_1, k=8):
    rows = [
        ("pass@1", pass_at_1, pass_at_1 - 0.03, pass_at_1 + 0.03, 200),
        (f"pass@{k}", 0.9, 0.88, 0.92, 200),
        ("mean_tokens", 17.23, 16.5, 18.0, 200),
    ]
    return pl.DataFrame(rows, schema=tables.EVAL_SCORES.schema, orient="row")


def test_scores_of_all_experiments_and_iterations_are_one_table(make_run):
    runs = [make_run("one"), make_run("two")]
    table = all_scores(runs)
    assert table.schema == SCORES.schema
    assert table.select("experiment", "iteration").unique().height == 6


def test_an_experiment_without_scores_is_an_error_that_says_what_to_run(make_run):
    run = replace(make_run("two", {}), notes=["iter_00/checkpoint is missing: never made"])
    with pytest.raises(ToprError, match=r"two has no eval_scores.*topr run two.*never made"):
        all_scores([make_run("one"), run])


def test_neighbours_are_compared_and_the_first_with_the_last(make_run):
    run = make_run()
    assert steps(run) == [(0, 1), (1, 2), (0, 2)]
    assert steps(make_run(solved={0: {"p": "77"}, 3: {"p": "77"}})) == [(0, 3)]
    assert steps(make_run(solved={0: {"p": "77"}})) == []
    table = all_differences([run])
    assert table.schema == STEPS.schema
    first = table.filter(metric="pass@1", iteration=1).row(0, named=True)
    assert (first["before"], first["after"]) == (3 / 8, 4 / 8)  # 0, 1/2, 1, 0 and 1, 1, 0, 0


def test_iterations_that_share_no_prompt_are_not_compared(make_run):
    run = make_run(solved={0: {"p": "55"}, 1: {"p": "77"}, 2: {"q": "77"}})
    assert steps(run) == [(0, 1)]
    assert len(reading(run, all_differences([run]))) == 1


def test_experiments_are_compared_with_the_first_where_both_have_an_iteration(make_run):
    one, two = make_run("one"), make_run("two", {0: {"p": "77"}, 1: {"p": "77", "q": "55"}})
    table = all_differences([one, two]).filter(experiment="two", against="one", metric="pass@1")
    assert table.select("iteration", "difference", "n").rows() == [(0, 1.0, 1), (1, -0.5, 2)]


def test_experiments_with_other_eval_prompts_are_not_compared(make_run):
    two = make_run("two")
    other = two.eval_prompts.with_columns(pl.col("prompt_id") + "x")
    table = all_differences([make_run("one"), replace(two, eval_prompts=other)])
    assert table.filter(pl.col("against") != pl.col("experiment")).is_empty()


READINGS = [
    ({0: "55", 1: "77"}, "The last iteration helped: +1.000 [+1.000, +1.000] against iteration 0"),
    ({0: "77", 1: "55"}, "The last iteration did harm: -1.000"),
    ({0: "77", 1: "77"}, "Whether the last iteration helped cannot be told: +0.000"),
    ({2: "75"}, "pass@1 is 0.500 [0.500, 0.500] at iteration 2."),
]


@pytest.mark.parametrize(("answers", "said"), READINGS)
def test_reading_says_whether_the_last_iteration_helped(make_run, answers, said):
    run = make_run(solved={k: dict.fromkeys("pqrs", both) for k, both in answers.items()})
    assert said in " ".join(reading(run, all_differences([run])))


def test_score_table_has_one_row_per_iteration_and_one_column_per_metric():
    table = score_table({1: scored(0.6), 0: scored(0.3, k=4)})
    assert table["iteration"].to_list() == [0, 1]
    assert table["pass@1"].to_list() == ["0.300 [0.270, 0.330]", "0.600 [0.570, 0.630]"]
    assert table["mean_tokens"][0] == "17.2 [16.5, 18.0]"
    assert table["pass@8"].to_list() == [None, "0.900 [0.880, 0.920]"]


def test_markdown_table_escapes_and_rounds():
    frame = pl.DataFrame({"what": ["a|b", None], "share": [1 / 3, 2.0]})
    assert (
        markdown_table(frame) == "| what | share |\n| --- | ---: |\n| a\\|b | 0.3333 |\n|  | 2 |\n"
    )
