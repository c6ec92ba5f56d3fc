"""Solutions and their rewards side by side, joined by id."""

import polars as pl

from topr_pipeline.errors import ToprError

KEY = ["prompt_id", "sample_index"]


def paired(solutions: pl.DataFrame, rewards: pl.DataFrame) -> pl.DataFrame:
    """`rewards` with the further columns of `solutions`, one row per solution.

    Raises ToprError for a reward without a solution, the reverse, or a row that stands twice.
    """
    try:
        joined = rewards.join(solutions, on=KEY, how="inner", validate="1:1")
    except pl.exceptions.ComputeError as error:
        raise ToprError(f"solutions and rewards: a {tuple(KEY)} stands twice ({error})") from error
    _check_all_there("reward", rewards, "solution", solutions, joined)
    _check_all_there("solution", solutions, "reward", rewards, joined)
    return joined


def _check_all_there(
    what: str, frame: pl.DataFrame, other: str, others: pl.DataFrame, joined: pl.DataFrame
) -> None:
    if joined.height == frame.height:
        return
    lost = frame.select(KEY).join(others.select(KEY), on=KEY, how="anti").sort(KEY)
    prompt_id, sample_index = lost.row(0)
    raise ToprError(
        f"{lost.height} of {frame.height} {what}s have no {other}: the first is prompt_id "
        f"{prompt_id!r}, sample_index {sample_index}; both tables must come from the same "
        "solutions: materialise rewards again"
    )
