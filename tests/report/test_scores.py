import polars as pl
import pytest

from topr_pipeline import tables
from topr_pipeline.errors import ToprError
from topr_pipeline.evals import (
    learning_curve,
    markdown_table,
    reward_histogram,
    score_table,
    training_curve,
    write_report,
)
from topr_pipeline.evals.plots import PANELS, _shown_metrics, pushed_apart

PNG = b"\x89PNG\r\n\x1a\n"


def scored(pass_at_1, k=8):
    rows = [
        ("pass@1", pass_at_1, pass_at_1 - 0.03, pass_at_1 + 0.03, 200),
        (f"pass@{k}", 0.9, 0.88, 0.92, 200),
        (f"maj@{k}", 0.89, 0.86, 0.91, 200),
        ("invalid", 0.2, 0.15, 0.25, 200),
        ("mean_tokens", 17.23, 16.5, 18.0, 200),
    ]
    return pl.DataFrame(rows, schema=tables.EVAL_SCORES.schema, orient="row")


SCORES = {0: scored(0.3), 1: scored(0.6), 2: scored(0.8)}
MIXES = {1: {"rows": 4096, "positive_share": 0.3125}, 2: {"rows": 4000, "baseline": 0.5}}


def test_report_has_its_three_files_and_equal_bytes_on_repetition(tmp_path):
    write_report(tmp_path / "one", "tiny", SCORES, MIXES)
    write_report(tmp_path / "two", "tiny", SCORES, MIXES)
    names = {path.name for path in (tmp_path / "one").iterdir()}
    assert names == {"report.md", "learning_curve.png", "scores.parquet"}
    assert tables.content_hash(tmp_path / "one") == tables.content_hash(tmp_path / "two")


def test_report_reads_the_first_against_the_last_iteration(tmp_path):
    write_report(tmp_path / "report", "tiny", SCORES, MIXES)
    text = (tmp_path / "report" / "report.md").read_text()
    assert (
        "pass@1 went from 0.300 [0.270, 0.330] at iteration 0 to 0.800 [0.770, 0.830] "
        "at iteration 2 (+0.500); the intervals do not overlap." in text
    )
    assert "| 1 | 4096 | 0.3125 |  |" in text
    assert "| 2 | 4000 |  | 0.5 |" in text
    long = pl.read_parquet(tmp_path / "report" / "scores.parquet")
    assert long.columns == ["iteration", *tables.EVAL_SCORES.columns]
    assert long.height == sum(frame.height for frame in SCORES.values())


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ({0: scored(0.5)}, "pass@1 is 0.500 [0.470, 0.530] at iteration 0."),
        ({0: scored(0.5), 1: scored(0.52)}, "(+0.020); the intervals overlap."),
        ({0: scored(0.5), 1: scored(0.2)}, "(-0.300); the intervals do not overlap."),
    ],
)
def test_reading_says_what_the_intervals_allow(tmp_path, scores, said):
    write_report(tmp_path / "report", "tiny", scores, {})
    assert said in (tmp_path / "report" / "report.md").read_text()


def test_report_without_scores_is_an_error(tmp_path):
    with pytest.raises(ToprError, match="no eval_scores"):
        write_report(tmp_path / "report", "tiny", {}, {})
    assert not (tmp_path / "report").exists()


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


def test_curve_shows_the_largest_k_that_all_iterations_have():
    assert _shown_metrics(SCORES) == ["pass@1", "pass@8", "maj@8"]
    assert _shown_metrics({0: scored(0.3, k=4), 1: scored(0.6)}) == ["pass@1"]


@pytest.mark.parametrize("scores", [{0: scored(0.3)}, SCORES, {k: scored(0.5) for k in range(40)}])
def test_learning_curve_is_a_png_for_one_and_for_many_iterations(scores):
    assert learning_curve(scores, "tiny").startswith(PNG)


def test_labels_of_lines_that_end_together_are_pushed_apart():
    assert pushed_apart([0.5, 0.49, 0.1], least=0.05, bottom=0) == [0.5, 0.45, 0.1]
    assert pushed_apart([0.001], least=0.05, bottom=0) == [0.025]


REWARDS = pl.DataFrame(
    {
        "prompt_id": ["a", "a", "b", "b", "c"],
        "outcome": ["correct", "incorrect", "invalid", "incorrect", "unverifiable"],
    }
)


@pytest.mark.parametrize("rewards", [REWARDS, REWARDS.head(1)])
def test_reward_histogram_is_a_png(rewards):
    assert reward_histogram(rewards).startswith(PNG)


def test_reward_histogram_of_nothing_verifiable_says_so():
    table = pl.DataFrame({"prompt_id": ["a"], "outcome": ["unverifiable"]})
    assert reward_histogram(table).startswith(b"\x89PNG")


@pytest.mark.parametrize("weights", [[0.9, None, 0.5], [None, None, None]])
def test_training_curve_is_a_png_with_and_without_negatives(weights):
    figures = {column: [0.5, 0.2, 0.1] for column, *_ in PANELS}
    log = pl.DataFrame({**figures, "step": [1, 2, 3], "weight_negative": weights})
    assert training_curve(log).startswith(PNG)
