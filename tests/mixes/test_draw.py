import numpy as np
import polars as pl
import pytest

from topr_pipeline.mixes.draw import key_numbers, lowest, reseeded, seed_of, weighted

IDS = pl.Series(["a", "a", "0123456789abcdef", "a much longer name of a prompt", "ä"])
INDEX = pl.Series([0, 1, 0, 0, 0], dtype=pl.Int32)


def test_the_number_of_a_key_is_the_same_everywhere_and_forever():
    numbers = key_numbers(IDS, INDEX)
    assert len(set(numbers.tolist())) == 5
    assert numbers[0] == 12701966699218566247
    for order in ([4, 3, 2, 1, 0], [2], [1, 0, 1]):
        assert key_numbers(IDS[order], INDEX[order]).tolist() == numbers[order].tolist()


def test_another_seed_is_another_order():
    numbers = key_numbers(IDS, INDEX)
    assert seed_of(0, 1) != seed_of(1, 0)
    assert np.argsort(reseeded(numbers, 1)).tolist() != np.argsort(reseeded(numbers, 2)).tolist()


@pytest.mark.parametrize("k", [1, 2, 500, 999, 1000])
def test_as_many_are_at_or_below_the_limit_as_were_asked_for(k):
    numbers = reseeded(np.arange(1000, dtype=np.uint64), 3)
    limit = lowest(lambda: np.array_split(numbers, 7), k)
    assert limit is not None
    assert (numbers <= limit).sum() == k
    assert lowest(lambda: [numbers], 0) is None


def test_weights_are_shares_of_the_draws_and_weight_nothing_comes_last():
    weight = np.array([3.0, 1.0, 0.0, 0.0])
    numbers = reseeded(np.arange(4000, dtype=np.uint64), 5).reshape(1000, 4)
    waits = np.stack([weighted(row, weight) for row in numbers])
    assert abs((waits.argmin(axis=1) == 0).mean() - 0.75) < 0.05
    assert waits[:, :2].max() < waits[:, 2:].min()
    assert abs((waits[:, 2] < waits[:, 3]).mean() - 0.5) < 0.06
