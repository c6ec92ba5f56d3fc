"""`training` in the words of transformers."""

import os
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import TrainingArguments

from topr_pipeline.experiment import Training

PROJECT = "topr"
"""What runs are grouped under by those of `report_to` that group them."""

_SCHEDULES = {"constant": "constant_with_warmup", "cosine": "cosine"}


def arguments(
    training: Training, seed: int, output: Path, logs: Path | None, name: str
) -> TrainingArguments:
    """The Trainer's arguments; an item of its dataset is a whole step, so nothing accumulates."""
    if logs is not None:
        _keep_below(logs, training)
    args = TrainingArguments(
        output_dir=str(output),
        run_name=name,
        project=PROJECT,  # of trackio
        seed=seed,
        use_cpu=not torch.cuda.is_available(),
        bf16=training.dtype == "bfloat16",
        optim={"adamw": "adamw_torch_fused"}.get(training.optimizer, training.optimizer),
        learning_rate=training.learning_rate,
        lr_scheduler_type=_SCHEDULES[training.schedule],
        warmup_steps=training.warmup_steps,
        adam_beta1=training.betas[0],
        adam_beta2=training.betas[1],
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        num_train_epochs=1,  # epochs are in the list of steps
        per_device_train_batch_size=1,
        fsdp=True if training.launch.fsdp else None,  # pyrefly: ignore
        fsdp_config={"state_dict_type": "FULL_STATE_DICT"} if training.launch.fsdp else None,
        ddp_find_unused_parameters=False,
        remove_unused_columns=False,
        save_strategy="no",  # the recorder says when
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to=list(training.report_to) or "none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        use_cache=True,  # False would be written into the saved config.json
    )
    plugin: Any = args.fsdp_plugin_args
    if plugin is not None and training.dtype == "bfloat16":
        # Of its own, accelerate would sum gradients over processes in bf16.
        plugin["mixed_precision_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
        )
    args._n_gpu = min(args.n_gpu, 1)  # else the Trainer splits a batch over all GPUs in threads
    return args


def _keep_below(logs: Path, training: Training) -> None:
    """Say to the tools of `report_to` where to write, unless the environment does already."""
    if not training.report_to:
        return
    logs.mkdir(parents=True, exist_ok=True)  # wandb would go elsewhere
    below = logs.absolute()
    said = {
        "TENSORBOARD_LOGGING_DIR": str(logs),
        "WANDB_DIR": str(below),
        "WANDB_PROJECT": PROJECT,
        "MLFLOW_TRACKING_URI": f"sqlite:///{below}/mlflow.db",
        "MLFLOW_EXPERIMENT_NAME": PROJECT,
        "TRACKIO_DIR": str(below / "trackio"),
    }
    for name, value in said.items():
        os.environ.setdefault(name, value)
