"""From a mix to the next policy: objective, log-probs, trainer, and the base policy.

In: the `mix` table, the starting policy's folder (Hugging Face format) and `Training`. Out: a
folder in the same format and the `training_log` table. What may fail: an empty or malformed mix,
log-probs that the starting policy does not confirm, a loss that is not finite; each is a ToprError,
and no weights are written. Names load on first use, so that importing this does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topr_pipeline.checkpoints.base import prepare_base_policy
    from topr_pipeline.checkpoints.folders import describe
    from topr_pipeline.checkpoints.logprobs import completion_logprobs
    from topr_pipeline.checkpoints.objective import (
        Loss,
        Objective,
        ObjectiveInput,
        make_objective,
    )
    from topr_pipeline.checkpoints.trained import Trained
    from topr_pipeline.checkpoints.trainer import train

__all__ = [
    "Loss",
    "Objective",
    "ObjectiveInput",
    "Trained",
    "completion_logprobs",
    "describe",
    "make_objective",
    "prepare_base_policy",
    "train",
]

_MODULES = {
    "Loss": "objective",
    "Objective": "objective",
    "ObjectiveInput": "objective",
    "Trained": "trained",
    "completion_logprobs": "logprobs",
    "describe": "folders",
    "make_objective": "objective",
    "prepare_base_policy": "base",
    "train": "trainer",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
