from pathlib import Path

import polars as pl
import pytest

from topr_pipeline.checkpoints import agreement as module
from topr_pipeline.checkpoints.agreement import Agreement, agreement

LIMITS = (0.97, 1.03)


def shifted(mix: pl.DataFrame, per_token: float) -> pl.LazyFrame:
    """The tiny Llama's samples with every stored log-prob off by `per_token`."""
    return mix.with_columns(logprobs=pl.col("logprobs").list.eval(pl.element() + per_token)).lazy()


def test_the_policys_own_logprobs_agree(mix: pl.DataFrame, start: Path):
    found = agreement(mix.lazy(), start)
    assert found.sequences == 20
    assert found.max_difference < 1e-5
    assert found.mean_clipped_ratio == pytest.approx(1, abs=1e-5)
    assert found.within(LIMITS)


@pytest.mark.parametrize("per_token", [0.1, -0.1])
def test_logprobs_that_are_off_do_not_agree_in_either_direction(mix, start: Path, per_token: float):
    found = agreement(shifted(mix, per_token), start)
    assert found.max_difference == pytest.approx(0.1, abs=1e-5)
    assert found.mean_difference == pytest.approx(0.1, abs=1e-5)
    lowered = found.mean_clipped_ratio if per_token > 0 else found.inverse_ratio
    tokens = mix["token_ids"].list.len()
    assert lowered == pytest.approx((-0.1 * tokens).exp().mean(), abs=1e-4)
    assert max(found.mean_clipped_ratio, found.inverse_ratio) == pytest.approx(1, abs=1e-5)
    assert not found.within(LIMITS)


def test_one_bad_sample_in_a_long_batch_shows(
    mix: pl.DataFrame, start: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also that rows keep their own log-probs when they are sorted into several forward passes."""
    monkeypatch.setattr(module, "TOKENS", 16)
    bad = mix.with_row_index("row").with_columns(
        logprobs=pl.when(pl.col("row") == 13)
        .then(pl.col("logprobs").list.eval(pl.element() - 5))
        .otherwise("logprobs")
    )
    found = agreement(bad.lazy(), start)
    assert found.max_difference == pytest.approx(5, abs=1e-4)
    assert found.inverse_ratio == pytest.approx(19 / 20, abs=1e-3)


def test_few_samples_are_taken_from_all_over_the_table(mix: pl.DataFrame, start: Path):
    last_off = mix.with_row_index("row").with_columns(
        logprobs=pl.when(pl.col("row") == 19)
        .then(pl.col("logprobs").list.eval(pl.element() - 1))
        .otherwise("logprobs")
    )
    found = agreement(last_off.lazy(), start, sequences=3)
    assert found.sequences == 3
    assert found.max_difference == pytest.approx(1, abs=1e-4)


def test_no_samples_agree_without_loading_a_model(mix: pl.DataFrame, tmp_path: Path):
    assert agreement(mix.head(0).lazy(), tmp_path) == Agreement(0, 0.0, 0.0, 1.0, 1.0)
