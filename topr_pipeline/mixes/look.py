"""A few rows of a mix as a reader would see them."""

from collections.abc import Mapping

import polars as pl

from topr_pipeline.mixes.pairing import KEY

EXAMPLES = 5


def examples(
    table: pl.LazyFrame, solutions: Mapping[int, pl.LazyFrame], prompts: pl.DataFrame
) -> pl.DataFrame:
    """EXAMPLES rows of a `mix`, of both signs where there are both, with prompt and completion.

    `solutions` holds the solutions table of each iteration; only the texts of these rows are kept.
    """
    above, key = pl.col("advantage") > 0, ["iteration", *KEY]
    columns = [*key, "reward", "advantage", "logprob"]
    each = [table.select(columns).filter(sign).head(EXAMPLES) for sign in (above, ~above)]
    positive, negative = pl.collect_all(each, engine="streaming")
    share = EXAMPLES - min(negative.height, EXAMPLES // 2)
    few = pl.concat([positive.head(share), negative]).head(EXAMPLES)
    texts = [
        lazy.select("text", *KEY, iteration=pl.lit(at, pl.Int32)).join(
            few.lazy().filter(iteration=at), on=key, how="semi"
        )
        for at, lazy in solutions.items()
    ]
    found = pl.concat(texts).collect(engine="streaming")
    joined = few.join(found, on=key, how="left", maintain_order="left").join(
        prompts.select("prompt_id", "prompt"), on="prompt_id", how="left", maintain_order="left"
    )
    return joined.select("iteration", "prompt", "text", "reward", "advantage", "logprob")
