"""States of a training that was cut off, and whether the disk has room for them.

    iter_01/.checkpoint.state/<fingerprint>/checkpoint-120/    the newest complete state
    iter_01/.checkpoint.state/<fingerprint>/.writing/          one that is being written

The fingerprint is of all that decides the weights: a state of anything else is never resumed from.
A state gets its name when it is complete, and only then the one before it is removed.
"""

import hashlib
import os
import shutil
from pathlib import Path

import polars as pl

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Training, fingerprint
from topr_pipeline.tables import code_hash, content_hash, remove

FORMAT = 2
"""Raised when a state of older code cannot be read, or would lead to other weights."""

PREFIX = "checkpoint-"
"""transformers' own name of a state, before the number of its step."""

OPTIMIZER_BYTES = {
    "adafactor": 1,
    "sgd": 0,
    "adagrad": 4,
    "rmsprop": 4,
    "ademamix": 12,
    "paged_ademamix_32bit": 12,
}
"""Of optimiser state per parameter; the others hold two fp32 numbers, or less."""


def state_folder(
    states: Path, mix: pl.DataFrame, start: Path, training: Training, seed: int
) -> Path:
    """Where the states of this very training lie below `states`."""
    rows = hashlib.sha256(mix.hash_rows().to_numpy().tobytes()).hexdigest()
    objective = training.objective if isinstance(training.objective, str) else ""
    sharded = int(training.launch.fsdp)
    said = (rows, content_hash(start), training, code_hash(objective), seed, sharded)
    return states / fingerprint(FORMAT, *said)


def writing(folder: Path) -> Path:
    """Where the next state is written before it is complete."""
    return folder / ".writing"


def newest(folder: Path) -> Path | None:
    """The complete state of most steps."""
    return max(folder.glob(f"{PREFIX}*"), key=_step, default=None)


def complete(folder: Path) -> None:
    """Give what was written its name, and remove those before it."""
    before = list(folder.glob(f"{PREFIX}*"))
    (written,) = writing(folder).glob(f"{PREFIX}*")
    os.replace(written, folder / written.name)
    for old in before:
        remove(old)


def remove_others(folder: Path) -> None:
    """Remove the states of other trainings beside `folder`: nothing goes on from them."""
    for other in folder.parent.glob("*"):
        if other != folder:
            remove(other)


def check_room(folder: Path, states: Path | None, parameters: int, training: Training) -> None:
    """Raise ToprError when the disk has no room for the policy, and for two states of it.

    Two, because the older one stays until the newer is complete. Weights are saved in fp32. What
    lies below `states` counts as room: it is one of the two, or goes before anything is written.
    """
    policy = 4 * parameters
    # Of low-rank updates alone there is next to none.
    of_optimizer = 0 if training.lora else OPTIMIZER_BYTES.get(training.optimizer, 8)
    state = policy + of_optimizer * parameters
    keeps = states is not None and keeps_states(training)
    wanted = policy + (2 * state if keeps else 0)
    there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(there).free + (_size(states) if keeps and states else 0)
    if free < wanted:
        for_states = f", two states to resume from {2 * state / 1e9:,.2f}" if keeps else ""
        less = "; training.save_steps: null and save_minutes: null keep none" if keeps else ""
        raise ToprError(
            f"{free / 1e9:,.2f} GB are free at {there}, older states counted as free, and training "
            f"writes up to {wanted / 1e9:,.2f} GB: the policy {policy / 1e9:,.2f}{for_states}. "
            f"Make room and run again{less}"
        )


def keeps_states(training: Training) -> bool:
    """Whether the training leaves states to resume from."""
    return training.save_steps is not None or training.save_minutes is not None


def _size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def _step(state: Path) -> int:
    return int(state.name.removeprefix(PREFIX))
