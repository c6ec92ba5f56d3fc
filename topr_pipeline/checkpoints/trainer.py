"""Training on a mix: an objective on transformers' Trainer.

The Trainer keeps optimiser, schedule, clipping, devices, processes and states. Ours are the steps
(an item of its dataset is a whole step, cut into forwards), the loss, and the record of each step.
"""

import math
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import nn
from transformers import PreTrainedModel, Trainer, TrainingArguments
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import PrinterCallback

from topr_pipeline.checkpoints.arguments import arguments
from topr_pipeline.checkpoints.batches import (
    Forward,
    Sample,
    forwards,
    objective_input,
    samples_of,
    steps,
)
from topr_pipeline.checkpoints.figures import facts
from topr_pipeline.checkpoints.folders import describe, load, save
from topr_pipeline.checkpoints.lora import add_lora, merge
from topr_pipeline.checkpoints.objective import Objective, make_objective
from topr_pipeline.checkpoints.packages import check_packages
from topr_pipeline.checkpoints.processes import gathered, is_first, rank, together, world
from topr_pipeline.checkpoints.recorder import Recorder
from topr_pipeline.checkpoints.selfcheck import check_mix, prepared, recomputed
from topr_pipeline.checkpoints.shared_prefix import GroupLogprobs
from topr_pipeline.checkpoints.state_files import (
    read_generators,
    read_optimizer,
    read_weights,
    write_training,
)
from topr_pipeline.checkpoints.states import (
    PREFIX,
    check_room,
    complete,
    keeps_states,
    newest,
    remove_others,
    state_folder,
    writing,
)
from topr_pipeline.checkpoints.trained import Trained
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Training
from topr_pipeline.progress import Progress, quiet
from topr_pipeline.tables import MIX, disk_errors, remove


def train(
    mix: pl.DataFrame,
    start: Path,
    folder: Path,
    training: Training,
    seed: int,
    progress: Progress = quiet,
    *,
    state: Path | None = None,
    logs: Path | None = None,
    name: str = "training",
    on_policy: bool = True,
) -> Trained:
    """Train the policy in `start` on `mix`; write model and tokenizer, nothing else, to `folder`.

    Each step's loss is the mean over its `batch_size` samples (the last step may have fewer),
    whatever the forwards are and in how many processes they run; a sample of advantage 0 counts in
    the mean and adds no gradient. Weights and optimiser are fp32, and saved so: `bfloat16` is
    autocast, since in bf16 weights a learning rate of 5e-7 rounds away. Dropout is off, or pi would
    be another policy than the one sampled. On CUDA where there is one, else on the CPU; equal
    inputs give equal bytes at one thread count.

    Where `state` is a folder, states are kept below it, and a training of the very same inputs that
    was cut off goes on from the newest, to the same weights. Whoever called removes the folder when
    the policy is safe. `logs` is where `training.report_to: [tensorboard]` writes.
    Unless `on_policy`, log mu of the newest samples is not `start`'s: not compared, not recomputed.
    Under torchrun, each process calls this with the same arguments; the first one writes.

    ToprError, and no policy: for a mix, policy or package that it cannot train with, a full disk,
    log-probs outside `training.ratio_limits`, a loss or gradient norm that is not finite.
    """
    mix = MIX.conform(mix)
    objective = make_objective(training.objective)
    _check(mix, start, folder, objective, training, state)
    keeps = state is not None and keeps_states(training)
    states = state_folder(state, mix, start, training, seed) if state and keeps else None
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) if states is None else writing(states)
        args = arguments(training, seed, output, logs, name)
        _start_alone(states)
        model, tokenizer = load(start, "float32")
        logprobs_of = GroupLogprobs()
        if training.recompute_behaviour and on_policy:
            mix = recomputed(mix, nn.Module.to(model, args.device), logprobs_of, training)
        adapters = add_lora(model, training, seed)
        step = _Step(model, objective, logprobs_of, training.gradient_checkpointing)
        trainer = _trainer(mix, step, training, seed, args, states, progress, on_policy)
        trainer.go_on()
    _save(trainer, adapters, model, tokenizer, folder)
    return trainer.recorder.trained(trainer.state)


def _start_alone(states: Path | None) -> None:
    """Remove other trainings' states, once all processes have counted them as room."""
    together()
    if states is not None and is_first():
        remove_others(states)


def _save(trainer: "_Trainer", adapters: Any, model: Any, tokenizer: Any, folder: Path) -> None:
    weights = trainer.whole_weights()
    if is_first():
        merge(adapters)
        save(model, tokenizer, folder, weights)
    together()


def _check(
    mix: pl.DataFrame,
    start: Path,
    folder: Path,
    objective: Objective,
    training: Training,
    state: Path | None,
) -> None:
    """Raise ToprError for what can be known before the model is loaded."""
    check_mix(mix, objective.reads_behaviour, training.max_missing_logprobs)
    prepared(objective.prepare, mix, training)
    check_packages(training)
    check_room(folder, state, describe(start)["parameters"], training)


def _trainer(
    mix: pl.DataFrame,
    step: "_Step",
    training: Training,
    seed: int,
    args: TrainingArguments,
    states: Path | None,
    progress: Progress,
    on_policy: bool,
) -> "_Trainer":
    """The Trainer over the mix as the step's objective prepares it."""
    reads_behaviour = step.objective.reads_behaviour
    samples = samples_of(prepared(step.objective.prepare, mix, training))
    trainer = _Trainer(
        states=states,
        recorder=Recorder(mix, training, reads_behaviour, states is not None, progress, on_policy),
        tokens=training.tokens_per_forward,
        model=step,
        args=args,
        train_dataset=_Steps(samples, training, seed),
        data_collator=_only,
    )
    if training.launch.fsdp and not trainer.is_fsdp_enabled:
        raise ToprError(
            "training.launch.fsdp: true, but accelerate shards over GPUs alone and there are none "
            "here; without fsdp each process holds all weights"
        )
    trainer.remove_callback(PrinterCallback)
    return trainer


class _Step(nn.Module):
    """The policy with its objective on top: what is wrapped for several processes is this."""

    def __init__(
        self,
        policy: PreTrainedModel,
        objective: Objective,
        logprobs_of: GroupLogprobs,
        checkpointing: bool,
    ):
        super().__init__()
        self.policy, self.objective, self.logprobs_of = policy, objective, logprobs_of
        self._no_split_modules = policy._no_split_modules
        without_dropout(policy)
        policy.eval()
        if checkpointing:
            policy.gradient_checkpointing_enable({"use_reentrant": False})
            for module in policy.modules():
                if isinstance(module, GradientCheckpointingLayer):
                    module.training = True  # of the layer alone: it reads this, and nothing else

    def forward(self, groups: Forward, samples: int | None) -> tuple[torch.Tensor, pl.DataFrame]:
        """This forward's share of the mean loss over the `samples` of the step, and its facts.

        Without `samples` it only finds out whether the policy can share prompts.
        """
        if samples is None:
            self.logprobs_of.verify(self.policy, groups)
            return torch.zeros(()), pl.DataFrame()
        logprobs = self.logprobs_of(self.policy, groups)
        loss = self.objective.loss(objective_input(groups, logprobs))
        return loss.loss_B.sum() / samples, facts(groups, logprobs, loss)


class _Steps(torch.utils.data.Dataset):
    """Steps of the optimiser: the samples of each, of all processes."""

    def __init__(self, samples: list[Sample], training: Training, seed: int):
        size, epochs, shuffle = training.batch_size, training.epochs, training.shuffle
        self.steps = steps(samples, size, epochs, seed, shuffle)

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, index: int) -> dict[str, list[Sample]]:
        return {"batch": self.steps[index]}


class _Trainer(Trainer):
    def __init__(self, states: Path | None, recorder: Recorder, tokens: int, **kwargs: Any):
        super().__init__(callbacks=[recorder], **kwargs)
        self.states, self.recorder, self.tokens = states, recorder, tokens

    def go_on(self) -> None:
        """Train, from the newest state where there is one."""
        resumed = newest(self.states) if self.states is not None else None
        self.train(resume_from_checkpoint=None if resumed is None else str(resumed))

    def get_train_dataloader(self) -> Any:
        """Not sharded by accelerate: an item knows its process."""
        steps: Any = self.train_dataset
        return torch.utils.data.DataLoader(steps, batch_size=1, collate_fn=self.data_collator)

    def training_step(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
        """Forward and backward of all of this process's forwards; gradients meet in the last."""
        total = torch.zeros((), device=self.args.device)
        samples: list[pl.DataFrame] = []
        share = self._share(model, inputs["batch"])
        for i, (groups, counts) in enumerate(share):
            last = i == len(share) - 1
            with nullcontext() if last else self.accelerator.no_sync(model):
                loss, of_forward = model(groups, len(inputs["batch"]))
                # Gradients are averaged over processes, and a step's loss is a sum over them.
                self.accelerator.backward(loss * (world() if counts else 0.0))
            if counts:
                total += loss.detach()
                samples.append(of_forward)
        self.recorder.take(gathered(samples), self.state.global_step)
        return total * world()  # the Trainer logs the mean over processes

    def _share(self, model: Any, batch: list[Sample]) -> list[tuple[Forward, bool]]:
        """This process's forwards, and whether each counts.

        All processes have equally many, so that they meet; what stands in for one that a process
        lacks is computed and counts for nothing.
        """
        step: Any = self.accelerator.unwrap_model(model)
        if not step.logprobs_of.verified:
            with torch.no_grad():
                model(forwards(batch, self.tokens)[0], None)
        shares_prefix = step.logprobs_of.shares(step.policy, batch)
        cut = forwards(batch, self.tokens, world(), shares_prefix)
        mine = [cut[i] if i < len(cut) else [] for i in range(rank(), _ceil(cut), world())]
        return [(groups or cut[0], bool(groups)) for groups in mine]

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """With the figures of the step; they go into the state too, and come back from it."""
        if "grad_norm" in logs:
            logs.update(self.recorder.row(logs, self.state))
        super().log(logs, *args, **kwargs)

    def whole_weights(self) -> dict[str, torch.Tensor] | None:
        """The policy's weights where processes hold shards of them; else they are in the policy."""
        if not self.is_fsdp_enabled:
            return None
        weights = self.accelerator.get_state_dict(self.model)
        return {key.removeprefix("policy."): value for key, value in weights.items()}

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """A state, under its name only when complete; the Trainer's own would be pickles."""
        assert self.states is not None
        folder = writing(self.states) / f"{PREFIX}{self.state.global_step}"
        with disk_errors(self.states):
            if is_first():
                remove(writing(self.states))
                folder.mkdir(parents=True)
            together()
            write_training(folder, *self._stateful())
            if is_first():
                self.state.save_to_json(str(folder / TRAINER_STATE_NAME))
            together()
            if is_first():
                complete(self.states)
            together()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        whole: Any = self.model if model is None else model
        read_weights(Path(resume_from_checkpoint), whole, self.is_fsdp_enabled)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            read_optimizer(Path(checkpoint), *self._stateful())

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            read_generators(Path(checkpoint))

    def _stateful(self) -> tuple[Any, Any, Any, bool]:
        optimizer: Any = self.optimizer
        inner = getattr(optimizer, "optimizer", optimizer)  # within accelerate's wrapper
        return self.model, inner, self.lr_scheduler, self.is_fsdp_enabled

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted: the Trainer's estimate would read `input_ids` from the inputs."""
        return 0


def without_dropout(model: nn.Module) -> None:
    """Set every dropout of the model to 0, that of modules and that which layers do themselves."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for attribute, value in vars(module).items():
            if "drop" in attribute and isinstance(value, float):
                setattr(module, attribute, 0.0)


def _ceil(cut: list[Forward]) -> int:
    return math.ceil(len(cut) / world()) * world()


def _only(items: list[dict[str, Any]]) -> dict[str, Any]:
    [item] = items
    return item
