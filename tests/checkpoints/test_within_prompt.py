import polars as pl
import pytest

from topr_pipeline.checkpoints.within_prompt import advantages_normalized, wins_paired
from topr_pipeline.errors import ToprError


def mix(rows: list[tuple[str, float]]) -> pl.DataFrame:
    """Rows of prompt and reward, sample_index counting through; the advantage is the reward."""
    return pl.DataFrame(
        [(prompt, i, reward, reward) for i, (prompt, reward) in enumerate(rows)],
        schema=["prompt_id", "sample_index", "reward", "advantage"],
        orient="row",
    )


def test_grpo_normalizes_over_all_rows_of_the_prompt_wherever_they_stand():
    rows = mix(
        [("a", 1.0), ("b", 1.0), ("a", -1.0), ("a", -1.0), ("b", 1.0), ("c", -1.0), ("a", 1.0)]
    )
    # Rewards 1, -1, -1, 1 of a: mean 0, variance 4 / 3, so +-0.866025. b agrees, c is alone.
    found = advantages_normalized(rows)["advantage"].to_list()
    assert found == pytest.approx([0.866025, 0, -0.866025, -0.866025, 0, 0, 0.866025], rel=1e-5)


def test_grpo_does_not_read_the_baseline():
    rows = mix([("a", 1.0), ("a", 0.0)])
    shifted = rows.with_columns(advantage=pl.col("advantage") - 0.3)
    assert advantages_normalized(shifted).equals(advantages_normalized(rows))


def test_pairs_are_formed_within_a_prompt_first_with_first():
    rows = mix(
        [("a", -1.0), ("b", 1.0), ("a", 1.0), ("a", -0.5), ("a", 2.0), ("a", -1.0), ("b", 0.0)]
    )
    pairs = wins_paired(rows).select("unit", "sample_index").sort("unit", "sample_index")
    assert pairs.rows() == [(0, 0), (0, 2), (1, 3), (1, 4)]  # 5, 1 and 6 have no mate


def test_pairs_keep_the_order_and_columns_of_the_mix():
    rows = mix([("a", -1.0), ("b", -1.0), ("b", 1.0), ("a", 1.0)])
    found = wins_paired(rows)
    assert found["sample_index"].to_list() == [0, 1, 2, 3]
    assert found.columns == [*rows.columns, "unit"]
    assert found["unit"].to_list() == [1, 0, 0, 1]


def test_no_pair_at_all_is_an_error():
    with pytest.raises(ToprError, match="no prompt has both"):
        wins_paired(mix([("a", 1.0), ("b", -1.0)]))
