"""The record of a training: a row per step, when to keep a state, and what stops it."""

import math
import time
from typing import Any

import polars as pl
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from topr_pipeline.checkpoints.figures import figures, named
from topr_pipeline.checkpoints.processes import agreed, is_first
from topr_pipeline.checkpoints.selfcheck import check_start
from topr_pipeline.checkpoints.trained import Trained
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Training
from topr_pipeline.progress import Progress
from topr_pipeline.tables import TRAINING_LOG


class Recorder(TrainerCallback):
    """Gathers the samples of each step into a row, and stops a training that went wrong.

    The rows lie in the Trainer's state, so that a resumed training has those before the kill.
    `keeps` is whether there is a folder for states; `on_policy` whether the ratio of the first
    batch has to be within the limits.
    """

    def __init__(
        self,
        mix: pl.DataFrame,
        training: Training,
        reads_behaviour: bool,
        keeps: bool,
        progress: Progress,
        on_policy: bool = True,
    ):
        self.newest = int(mix["iteration"].max())  # pyrefly: ignore
        self.training, self.keeps, self.progress = training, keeps, progress
        self.reads_behaviour = reads_behaviour
        self.limits = training.ratio_limits if on_policy else None
        self.samples = pl.DataFrame()
        self.ratio: float | None = None
        self.before = 0.0
        self.started = self.kept = time.monotonic()

    def take(self, samples: pl.DataFrame, done: int) -> None:
        """The samples of a step, before its weights change; `done` steps came before."""
        self.samples = samples
        broken = samples.filter(~pl.col("loss").is_finite())
        if broken.height:
            raise _not_finite("loss", broken["loss"][0], done + 1, broken)
        if done == 0 and self.reads_behaviour:
            fresh = samples.filter(pl.col("iteration") == self.newest)
            self.ratio = check_start(fresh.drop_nulls("log_ratio"), self.limits)

    def row(self, logs: dict[str, float], state: TrainerState) -> dict[str, Any]:
        """The row of the step that was just done, next to what the Trainer logs; without nulls."""
        if not math.isfinite(logs["grad_norm"]):
            raise _not_finite("gradient norm", logs["grad_norm"], state.global_step, self.samples)
        seconds = self.before + time.monotonic() - self.started
        earlier = state.log_history[-1]["seconds"] if state.log_history else 0.0
        found = figures(self.samples)
        rate = (found["tokens"] or 0) / max(seconds - earlier, 1e-9)
        first = {"mean_clipped_ratio": self.ratio} if state.global_step == 1 else {}
        row = {**found, "tokens_per_s": rate, "seconds": seconds, **first}
        return {name: value for name, value in row.items() if value is not None}

    def trained(self, state: TrainerState) -> Trained:
        """What is left of the training besides its weights."""
        rows = [row for row in state.log_history if "grad_norm" in row]
        named = [{name: row.get(name) for name in TRAINING_LOG.columns} for row in rows]
        log = TRAINING_LOG.conform(pl.DataFrame(named, infer_schema_length=None))
        return Trained(log, rows[0].get("mean_clipped_ratio"))

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self.started = self.kept = time.monotonic()
        self.before = state.log_history[-1]["seconds"] if state.log_history else 0.0
        self.progress(state.global_step, state.max_steps)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        if is_first() and logs is not None and "grad_norm" in logs:
            shown = {key: logs[key] for key in ("loss", "tokens_per_s")}
            self.progress(state.global_step, state.max_steps, **shown)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Ask for a state when one is due; not after the last step, where the policy is saved."""
        if not self.keeps:
            return
        steps, minutes = self.training.save_steps, self.training.save_minutes
        due = steps is not None and state.global_step % steps == 0
        if minutes is not None:
            due = due or agreed(time.monotonic() - self.kept) >= 60 * minutes
        if due and state.global_step < state.max_steps:
            control.should_save = True
            self.kept = time.monotonic()


def _not_finite(what: str, value: float, step: int, samples: pl.DataFrame) -> ToprError:
    return ToprError(
        f"{what} {value} at step {step}; samples (prompt_id, sample_index) in the batch: "
        f"{named(samples)}; nothing was written. A smaller training.learning_rate or an upper "
        "bound on the ratio may help"
    )
