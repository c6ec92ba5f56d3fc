"""The processes that train together, as torchrun started them; without it there is one."""

from typing import Any

import polars as pl
import torch.distributed as dist


def world() -> int:
    """How many there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_first() -> bool:
    """Whether this is the one that writes and tells."""
    return rank() == 0


def together() -> None:
    """Wait until all have come here."""
    if world() > 1:
        dist.barrier()


def everyones(value: Any) -> list[Any]:
    """The values of all processes in their order, in each of them."""
    if world() == 1:
        return [value]
    found = [None] * world()
    dist.all_gather_object(found, value)
    return found


def gathered(tables: list[pl.DataFrame]) -> pl.DataFrame:
    """The rows of the tables of all processes, in each of them."""
    return pl.concat([table for theirs in everyones(tables) for table in theirs])


def agreed(value: float) -> float:
    """The first one's value, in each of them."""
    said = [value]
    if world() > 1:
        dist.broadcast_object_list(said, src=0)
    return said[0]
