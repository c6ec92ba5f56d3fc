import math

import polars as pl
import pytest

from topr_pipeline.errors import ToprError
from topr_pipeline.evals.comparison import DIFFERENCES, differences
from topr_pipeline.experiment import Evaluation

EVALUATION = Evaluation(bootstrap=2000)


def values(**metrics):
    count = max(len(v) for v in metrics.values())
    return pl.DataFrame({"prompt_id": [f"p{i:02d}" for i in range(count)], **metrics})


def test_differences_equal_values_computed_by_hand():
    before = values(**{"pass@1": [0.0, 0.5, 0.5, 1.0], "mean_tokens": [4.0, 5.0, math.nan, 7.0]})
    after = values(**{"pass@1": [0.5, 0.5, 1.0, 1.0], "mean_tokens": [5.0, 7.0, 9.0, math.nan]})
    table = differences(before, after, EVALUATION, seed=0)
    assert table.schema == DIFFERENCES.schema
    share, tokens = table.iter_rows(named=True)
    assert (share["before"], share["after"], share["difference"]) == (0.5, 0.75, 0.25)
    assert (share["low"], share["high"]) == (0.0, 0.5)  # of 4 prompts, 2 changed
    assert share["verdict"] == "unclear"
    assert (tokens["before"], tokens["after"], tokens["n"]) == (4.5, 6.0, 2)
    assert (tokens["low"], tokens["high"], tokens["above"]) == (1.0, 2.0, 1.0)
    assert tokens["verdict"] == "higher"


def test_the_pairing_makes_the_interval_narrower_than_prompts_differ():
    """Every prompt gains 0.1, so that nothing is uncertain however much the prompts differ."""
    hard = [i / 40 for i in range(36)]
    table = differences(
        values(**{"pass@1": hard}), values(**{"pass@1": [h + 0.1 for h in hard]}), EVALUATION, 0
    )
    row = table.row(0, named=True)
    assert (row["low"], row["high"]) == (pytest.approx(0.1), pytest.approx(0.1))
    assert row["verdict"] == "higher"


def test_a_loss_is_lower_and_equal_evals_are_unclear():
    one, less = values(**{"pass@1": [0.9] * 9}), values(**{"pass@1": [0.1] * 9})
    assert differences(one, less, EVALUATION, 0)["verdict"].to_list() == ["lower"]
    same = differences(one, one, EVALUATION, 0).row(0, named=True)
    assert (same["verdict"], same["above"], same["difference"]) == ("unclear", 0.5, 0.0)


def test_prompts_are_matched_by_id_and_those_of_one_side_do_not_count():
    before = values(**{"pass@1": [0.0, 0.5, 1.0]})
    after = before.reverse().head(2).with_columns(pl.col("pass@1") / 2)
    row = differences(before, after, EVALUATION, 0).row(0, named=True)
    assert (row["n"], row["before"], row["after"]) == (2, 0.75, 0.375)


def test_metrics_that_one_side_lacks_are_left_out():
    before = values(**{"pass@1": [0.5], "maj@4": [math.nan], "maj@8": [1.0]})
    after = values(**{"pass@1": [0.5], "maj@4": [1.0], "pass@8": [1.0]})
    assert differences(before, after, EVALUATION, 0)["metric"].to_list() == ["pass@1"]


def test_evals_of_other_prompts_are_refused():
    one = values(**{"pass@1": [0.5]})
    with pytest.raises(ToprError, match=r"none of 1 eval prompts is among the other 1"):
        differences(one, one.with_columns(prompt_id=pl.lit("x")), EVALUATION, 0)


def test_the_seed_fixes_the_interval():
    before, after = values(**{"pass@1": [0.1, 0.4, 0.7]}), values(**{"pass@1": [0.5, 0.4, 0.9]})
    assert differences(before, after, EVALUATION, 1).equals(
        differences(before, after, EVALUATION, 1)
    )
