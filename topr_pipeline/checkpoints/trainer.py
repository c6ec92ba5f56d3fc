"""Training on a mix: the objective on transformers' Trainer.

The Trainer keeps optimiser, schedule, clipping, accumulation and devices. Ours are the batches (it
gets a list of micro-batches), the loss, and the record of each step.
"""

import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback

from topr_pipeline.checkpoints.folders import load, save
from topr_pipeline.checkpoints.logprobs import completion_logprobs
from topr_pipeline.checkpoints.objective import bounds_of, reads_behaviour, tapered_loss
from topr_pipeline.checkpoints.selfcheck import check_mix, check_start
from topr_pipeline.checkpoints.trained import Trained
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Bounds, Training
from topr_pipeline.progress import Progress, quiet
from topr_pipeline.tables import MIX, TRAINING_LOG

VANISHED = 0.05
"""Below this weight a negative sample counts as vanished in the log."""


def train(
    mix: pl.DataFrame,
    start: Path,
    folder: Path,
    training: Training,
    seed: int,
    progress: Progress = quiet,
) -> Trained:
    """Train the policy in `start` on `mix`; write model and tokenizer, nothing else, to `folder`.

    Rows are shuffled over the whole mix, anew in each epoch. Each step's loss is the mean over its
    `batch_size` samples (the last step may have fewer) whatever the micro-batches are; a sample of
    advantage 0 counts in the mean and adds no gradient. Weights and optimiser are fp32, and saved
    so: `bfloat16` is autocast, since in bf16 weights a learning rate of 5e-7 rounds away. Dropout
    is off, or pi would be another policy than the one sampled. On CUDA where there is one, else on
    the CPU; equal inputs give equal bytes at one thread count.

    Raises ToprError, with nothing written: for a mix or policy that cannot be trained on, log-probs
    outside `training.ratio_limits`, a loss or gradient norm that is not finite.
    """
    mix = MIX.conform(mix)
    bounds = bounds_of(training.objective)
    check_mix(mix, reads_behaviour(bounds))
    model, tokenizer = load(start, "float32")
    recorder = _Recorder(mix, training, bounds, progress)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = _Trainer(
            bounds=bounds,
            recorder=recorder,
            model=model,
            args=_arguments(training, seed, scratch),
            train_dataset=_MicroBatches(mix, training, seed),
            data_collator=_only,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    save(model, tokenizer, folder)
    log = pl.DataFrame(recorder.rows, infer_schema_length=None)  # figures may be null for long
    return Trained(TRAINING_LOG.conform(log), recorder.ratio)


class _MicroBatches(torch.utils.data.Dataset):
    """The mix, shuffled and cut into steps of `batch_size` and these into micro-batches.

    Epochs follow one another without a cut, so that only the very last step may be short. Within a
    step, micro-batches hold rows of like length, which saves padding.
    """

    def __init__(self, mix: pl.DataFrame, training: Training, seed: int):
        self.mix = mix
        generator = np.random.default_rng(seed)
        length_B = mix.select(_tokens()).to_series().to_numpy()
        order = np.concatenate([generator.permutation(mix.height) for _ in range(training.epochs)])
        self.rows: list[np.ndarray] = []
        for at in range(0, len(order), training.batch_size):
            step = order[at : at + training.batch_size]
            step = step[np.argsort(length_B[step], kind="stable")]
            size = training.micro_batch_size
            self.rows += [step[i : i + size] for i in range(0, len(step), size)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, pl.DataFrame]:
        return {"samples": self.mix[self.rows[index]]}


class _Recorder(TrainerCallback):
    """Gathers the samples of each step into a row of the log, and stops a run that went wrong."""

    def __init__(self, mix: pl.DataFrame, training: Training, bounds: Bounds, progress: Progress):
        self.newest = int(mix["iteration"].max())  # pyrefly: ignore
        self.limits = training.ratio_limits if reads_behaviour(bounds) else None
        self.progress = progress
        self.ratio: float | None = None
        self.rows: list[dict[str, Any]] = []
        self.samples: list[pl.DataFrame] = []
        self.started = time.monotonic()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if state.global_step == 0 and self.limits is not None:
            fresh = pl.concat(self.samples).filter(iteration=self.newest)
            self.ratio = check_start(fresh["log_ratio"], self.limits)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        if logs is None or "grad_norm" not in logs:
            return  # the summary after the last step
        samples, self.samples = pl.concat(self.samples), []
        _refuse_unless_finite("gradient norm", logs["grad_norm"], state.global_step, samples)
        self.rows.append(
            {
                "step": state.global_step,
                **{name: logs[name] for name in ("loss", "grad_norm", "learning_rate")},
                **samples.select(**_figures()).row(0, named=True),
                "seconds": time.monotonic() - self.started,
            }
        )
        self.progress(state.global_step, state.max_steps, loss=logs["loss"])


class _Trainer(Trainer):
    def __init__(self, bounds: Bounds, recorder: _Recorder, **kwargs: Any):
        super().__init__(callbacks=[recorder], **kwargs)
        self.bounds, self.recorder = bounds, recorder
        self.loss_is_scaled_for_ga = True  # compute_loss divides by the step's samples itself

    def get_batch_samples(
        self, epoch_iterator: Any, num_batches: int, device: torch.device
    ) -> tuple[list, int]:
        """The micro-batches of one step, and how many samples they hold together."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        return batches, sum(batch["samples"].height for batch in batches)

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **kwargs: Any) -> torch.Tensor:
        """This micro-batch's share of the mean over the step's samples."""
        model.eval()  # with dropout, pi would be another policy than the one that was sampled
        samples: pl.DataFrame = inputs["samples"].with_columns(tokens=_tokens())
        logprob_B = completion_logprobs(
            model, samples["prompt_token_ids"].to_list(), samples["token_ids"].to_list()
        ).logprob_B
        behaviour_logprob_B, advantage_B, length_B = (
            torch.tensor(column.to_numpy(), dtype=torch.float32, device=logprob_B.device)
            for column in samples.select(
                # A missing log mu, allowed where no weight reads it, is NaN and shows in no figure.
                pl.when(pl.col("logprobs").list.len() > 0)
                .then(pl.col("logprobs").cast(pl.List(pl.Float64)).list.sum())
                .otherwise(math.nan),
                pl.col("advantage"),
                pl.col("token_ids").list.len(),
            )
        )
        loss, weight_B, log_ratio_B = tapered_loss(
            logprob_B, behaviour_logprob_B, advantage_B, length_B, self.bounds
        )
        _refuse_unless_finite("loss", loss.item(), self.state.global_step + 1, samples)
        self.recorder.samples.append(
            samples.select(
                "prompt_id",
                "iteration",
                "advantage",
                "tokens",
                weight=pl.Series(weight_B.cpu().numpy()),
                log_ratio=pl.Series(log_ratio_B.cpu().numpy()),
            )
        )
        return loss * samples.height / kwargs["num_items_in_batch"]

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted: the Trainer's estimate would read `input_ids` from the inputs."""
        return 0


def _arguments(training: Training, seed: int, scratch: str) -> TrainingArguments:
    args = TrainingArguments(
        output_dir=scratch,
        seed=seed,
        use_cpu=not torch.cuda.is_available(),
        bf16=training.dtype == "bfloat16",
        optim={"adamw": "adamw_torch_fused", "adafactor": "adafactor"}[training.optimizer],
        learning_rate=training.learning_rate,
        lr_scheduler_type={"constant": "constant_with_warmup", "cosine": "cosine"}[
            training.schedule
        ],
        warmup_steps=training.warmup_steps,
        adam_beta1=training.betas[0],
        adam_beta2=training.betas[1],
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        num_train_epochs=1,  # epochs are in the list of micro-batches
        per_device_train_batch_size=1,  # an item is a micro-batch
        gradient_accumulation_steps=math.ceil(training.batch_size / training.micro_batch_size),
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        save_strategy="no",
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        use_cache=True,  # False would be written into the saved config.json
    )
    args._n_gpu = min(args.n_gpu, 1)  # else the Trainer splits a batch over all GPUs in threads
    return args


def _only(items: list[dict[str, pl.DataFrame]]) -> dict[str, pl.DataFrame]:
    [item] = items
    return item


def _tokens() -> pl.Expr:
    return pl.col("prompt_token_ids").list.len() + pl.col("token_ids").list.len()


def _figures() -> dict[str, pl.Expr]:
    """The columns of `training_log` that are means over the samples of a step."""
    positive = pl.col("advantage") >= 0
    log_ratio = pl.col("log_ratio").fill_nan(None)
    return {
        "positives": positive.sum(),
        "negatives": (~positive).sum(),
        "weight_negative": pl.col("weight").filter(~positive).mean(),
        "vanished_negative": (pl.col("weight").filter(~positive) < VANISHED).mean(),
        "log_ratio_positive": log_ratio.filter(positive).mean(),
        "log_ratio_negative": log_ratio.filter(~positive).mean(),
        "tokens": pl.col("tokens").sum(),
    }


def _refuse_unless_finite(what: str, value: float, step: int, samples: pl.DataFrame) -> None:
    if not math.isfinite(value):
        ids = samples["prompt_id"].unique(maintain_order=True).to_list()
        raise ToprError(
            f"{what} {value} at step {step}; prompt_ids in the batch: {', '.join(ids)}; nothing "
            "was written. A smaller training.learning_rate or an upper bound on the ratio may help"
        )
