"""Which prompts get how many further samples, by how their first samples were verified."""

import numpy as np
import polars as pl

from topr_pipeline.experiment import TopUp


def lacking(rewards: pl.DataFrame, top_up: TopUp) -> pl.DataFrame:
    """`prompt_id` of the prompts in a `rewards` table that have too few samples of one kind.

    A sample that is verified and not correct counts as incorrect, as in `anna_karenina`. A prompt
    none of whose samples could be verified lacks nothing that further ones would give.
    """
    outcome = pl.col("outcome")
    counted = rewards.filter(outcome != "unverifiable").group_by("prompt_id", maintain_order=True)
    kinds = counted.agg(correct=(outcome == "correct").sum(), others=(outcome != "correct").sum())
    too_few = (pl.col("correct") < top_up.correct) | (pl.col("others") < top_up.incorrect)
    return kinds.filter(too_few).select("prompt_id")


def further_samples(prompts: pl.DataFrame, rewards: pl.DataFrame, top_up: TopUp) -> np.ndarray:
    """more_P: how many further samples each of `prompts` gets; `rewards` are of its first ones.

    Each prompt that lacks some gets `top_up.samples`. Where that is more than `top_up.budget` they
    are dealt out in turn, one a prompt, in the order of `prompts`: chances of a sample that is
    wanted are best where fewest were tried. So a larger budget only adds to what a smaller one
    gives.

    With `budget: 5`, three prompts that lack some, of four, get 2, 2 and 1, the fourth none.
    """
    lacks_P = prompts["prompt_id"].is_in(lacking(rewards, top_up)["prompt_id"].implode()).to_numpy()
    count = int(lacks_P.sum())
    total = count * top_up.samples
    each, over = divmod(min(top_up.budget or total, total), max(count, 1))
    return lacks_P * (each + (np.cumsum(lacks_P) <= over))
