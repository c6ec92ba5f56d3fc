"""What a training must know to go on, in files that run no code when they are read.

    checkpoint-120/training.json         all but the arrays: numbers, names, how they are nested
    checkpoint-120/training.safetensors  the arrays: weights, optimiser
    checkpoint-120/random_0.*            the same of a process's random generators
    checkpoint-120/trainer_state.json    transformers' own: the step, and the log so far

torch's own `save` would pickle, and a pickle can do anything to whoever loads it.
"""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from topr_pipeline.checkpoints.processes import is_first, rank

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True, broadcast_from_rank0=True)
"""Of shards: gathered in the first process, and dealt out by it."""

SCALARS = (str, int, float, bool, type(None))


def write_tree(tree: Any, file: Path) -> None:
    """Write nested dicts, lists and tuples of tensors and scalars to `file`.json, .safetensors.

    Tensors that are the same memory (tied weights) are written once. Raises TypeError for anything
    else in the tree.
    """
    names: dict[Any, str] = {}
    arrays: dict[str, Tensor] = {}

    def described(x: Any) -> Any:
        if isinstance(x, SCALARS):
            return x
        if isinstance(x, Tensor):
            memory = (x.data_ptr(), x.shape, x.stride(), x.dtype) if x.numel() else len(names)
            name = names.setdefault(memory, str(len(names)))
            arrays[name] = x.detach().contiguous()
            return {"tensor": name}
        if isinstance(x, dict):
            return {"dict": [[described(key), described(value)] for key, value in x.items()]}
        if isinstance(x, list | tuple):
            return {type(x).__name__: [described(value) for value in x]}
        raise TypeError(f"a {type(x).__name__} in a state of a training; tensors and scalars go in")

    file.with_suffix(".json").write_text(json.dumps(described(tree)))
    save_file(arrays, file.with_suffix(".safetensors"))


def read_tree(file: Path) -> Any:
    """What `write_tree` wrote, on the CPU."""
    arrays = load_file(file.with_suffix(".safetensors"))

    def built(x: Any) -> Any:
        if not isinstance(x, dict):
            return x
        [(kind, inner)] = x.items()
        match kind:
            case "tensor":
                return arrays[inner]
            case "dict":
                return {built(key): built(value) for key, value in inner}
            case "list":
                return [built(value) for value in inner]
            case _:
                return tuple(built(value) for value in inner)

    return built(json.loads(file.with_suffix(".json").read_text()))


def write_training(
    folder: Path, model: nn.Module, optimizer: Any, scheduler: Any, sharded: bool
) -> None:
    """Weights, optimiser and schedule, by the first process; random generators, by each.

    All processes call this together, since shards are gathered here. `folder` exists.
    """
    if sharded:
        weights, of_optimizer = get_state_dict(model, optimizer, options=_WHOLE)
    else:
        weights, of_optimizer = model.state_dict(), optimizer.state_dict()
    if is_first():
        schedule = scheduler.state_dict()
        tree = {"weights": dict(weights), "optimizer": of_optimizer, "schedule": schedule}
        write_tree(tree, folder / "training")
    write_tree(_generators(), _of_process(folder))


def read_weights(folder: Path, model: nn.Module, sharded: bool) -> None:
    """Give `model` the weights of the state in `folder`."""
    if not sharded:
        model.load_state_dict(read_tree(folder / "training")["weights"])
    else:
        weights = read_tree(folder / "training")["weights"] if is_first() else {}
        set_model_state_dict(model, weights, options=_WHOLE)


def read_optimizer(
    folder: Path, model: nn.Module, optimizer: Any, scheduler: Any, sharded: bool
) -> None:
    """Give optimiser and schedule what the state in `folder` has of them."""
    tree = read_tree(folder / "training")
    if not sharded:
        optimizer.load_state_dict(tree["optimizer"])
    else:
        found = tree["optimizer"] if is_first() else {}
        set_optimizer_state_dict(model, optimizer, found, options=_WHOLE)
    scheduler.load_state_dict(tree["schedule"])


def read_generators(folder: Path) -> None:
    """Set the random generators of this process; not where there were fewer processes then."""
    file = _of_process(folder)
    if not file.with_suffix(".json").is_file():
        return
    found = read_tree(file)
    random.setstate(found["python"])
    np.random.set_state(found["numpy"])
    torch.set_rng_state(found["torch"])
    if torch.cuda.is_available() and "cuda" in found:
        torch.cuda.set_rng_state(found["cuda"])


def _generators() -> dict[str, Any]:
    kind, keys, *rest = np.random.get_state()
    found = {
        "python": random.getstate(),
        "numpy": (kind, np.asarray(keys).tolist(), *rest),
        "torch": torch.get_rng_state(),
    }
    return found | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def _of_process(folder: Path) -> Path:
    return folder / f"random_{rank()}"
