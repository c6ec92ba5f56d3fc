"""Packages that some keys of `training` want besides those that are always there."""

import importlib.util
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, get_args

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Training
from topr_pipeline.training import BitsAndBytes


def check_packages(training: Training) -> None:
    """Raise ToprError for a key whose package is not installed, or a user's objective's module."""
    if training.lora is not None and importlib.util.find_spec("peft") is None:
        raise ToprError(
            "peft is not installed; training.lora wants it: `pip install topr_pipeline[lora]`, "
            "or leave training.lora out to train all weights"
        )
    bitsandbytes = get_args(BitsAndBytes)
    if training.optimizer in bitsandbytes and importlib.util.find_spec("bitsandbytes") is None:
        raise ToprError(
            f"bitsandbytes is not installed; training.optimizer {training.optimizer} wants it: "
            "`pip install bitsandbytes`, or take adamw or adafactor"
        )
    for tool in training.report_to:
        if importlib.util.find_spec(tool) is None:
            raise ToprError(
                f"{tool} is not installed; training.report_to {list(training.report_to)}; "
                f"`pip install {tool}`, or leave it out: the same figures are in the training log"
            )
    if isinstance(training.objective, str) and training.objective.startswith("python:"):
        from topr_pipeline.checkpoints.objective import make_objective

        make_objective(training.objective)


@contextmanager
def unseen(*packages: str) -> Generator[None]:
    """Within the block, packages that are not imported yet look as if they were not installed.

    transformers' Trainer imports whatever it finds: datasets and peft, and pandas with them, are
    half of the time that its import takes.
    """
    modules: dict[str, Any] = sys.modules
    hidden = [name for name in packages if name not in modules]
    modules.update(dict.fromkeys(hidden))  # None there is how Python says so
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]


def unused(training: Training | None) -> list[str]:
    """Packages that transformers would import, and this training does not use.

    `None` is the pre-training of a tiny policy.
    """
    return ["datasets"] if training is not None and training.lora else ["datasets", "peft"]
