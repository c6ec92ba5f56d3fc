from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from topr_pipeline.mixes.write import _by_prompt, _RowGroups
from topr_pipeline.tables import MIX

ROWS, TOKENS = 3000, 200
"""Enough for several pages of tokens."""


@pytest.fixture
def table() -> pl.DataFrame:
    tokens = np.random.default_rng(0).integers(0, 1 << 30, (ROWS, TOKENS))
    made = pl.DataFrame({"token_ids": pl.Series(tokens).arr.to_list()}).with_row_index("at")
    missing = {name: pl.lit(None) for name in MIX.columns if name not in made.columns}
    key = {"prompt_id": pl.col("at").cast(pl.String), "sample_index": 0, "iteration": 1}
    return MIX.conform(made.with_columns(**{**missing, **key}))


def test_bytes_do_not_depend_on_how_the_rows_come(table: pl.DataFrame, tmp_path: Path):
    contents = []
    for i, cuts in enumerate([(0, ROWS), (0, 1, 700, 701, 2500, ROWS), (0, 2047, ROWS)]):
        with _RowGroups(tmp_path / f"{i}", 2000) as writer:
            for low, high in pairwise(cuts):
                writer.add(table.slice(low, high - low))
        contents.append((tmp_path / f"{i}").read_bytes())
    assert contents[0] == contents[1] == contents[2]


def test_prompts_are_put_in_order_and_cut_at_the_bounds():
    ids, at = pl.Series(["c", "c", "a", "d", "b", "b", "b"]), list(range(7))
    rows, cuts = _by_prompt(pl.DataFrame({"at": at}), ids, ["a", "bb", "x"])
    assert rows["at"].to_list() == [2, 4, 5, 6, 0, 1, 3]
    assert cuts == [0, 0, 4, 7, 7]  # below a, below bb, below x, the rest
    rows, cuts = _by_prompt(pl.DataFrame({"at": []}), pl.Series([], dtype=pl.String), ["a"])
    assert (rows.height, cuts) == (0, [0, 0, 0])
