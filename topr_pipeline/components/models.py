"""The only things that load a model, in one object: the Dagster resource `models`.

Tests replace it: `topr_pipeline.testing.FakeModels` has the same methods and loads nothing.
"""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import polars as pl

from topr_pipeline.checkpoints.agreement import Agreement
from topr_pipeline.checkpoints.trained import Trained
from topr_pipeline.experiment import Policy, Sampling, Training
from topr_pipeline.progress import Progress
from topr_pipeline.solutions.engine import Engine
from topr_pipeline.solutions.engines import make_engine
from topr_pipeline.tables import SOLUTIONS


class Models(Protocol):
    """What the stages need of models."""

    def base_policy(
        self, policy: Policy, folder: Path, seed: int, progress: Progress
    ) -> pl.DataFrame | None:
        """Write the base policy into `folder`; the training log if it was trained here."""
        ...

    def engine(self, sampling: Sampling) -> Engine:
        """The sampling engine, not started."""
        ...

    def agreement(self, solutions: Path, policy: Path) -> Agreement:
        """How far the log-probs in a solutions table are from those of the policy itself."""
        ...

    def train(
        self,
        mix: pl.DataFrame,
        start: Path,
        folder: Path,
        training: Training,
        seed: int,
        progress: Progress,
    ) -> Trained:
        """Train the policy in `start` on `mix` and write it into `folder`."""
        ...

    def threads(self, count: int | None) -> AbstractContextManager[None]:
        """A context in which models use `count` CPU threads (None: as many as torch chooses)."""
        ...


class RealModels:
    """transformers and the engines; torch is imported when a model is first needed."""

    def base_policy(
        self, policy: Policy, folder: Path, seed: int, progress: Progress
    ) -> pl.DataFrame | None:
        """See Models."""
        from topr_pipeline.checkpoints.base import prepare_base_policy

        return prepare_base_policy(policy, folder, seed, progress)

    def engine(self, sampling: Sampling) -> Engine:
        """See Models."""
        return make_engine(sampling.engine)

    def agreement(self, solutions: Path, policy: Path) -> Agreement:
        """See Models."""
        from topr_pipeline.checkpoints.agreement import agreement

        return agreement(SOLUTIONS.scan(solutions), policy)

    def train(
        self,
        mix: pl.DataFrame,
        start: Path,
        folder: Path,
        training: Training,
        seed: int,
        progress: Progress,
    ) -> Trained:
        """See Models."""
        from topr_pipeline.checkpoints.trainer import train

        return train(mix, start, folder, training, seed, progress)

    @contextmanager
    def threads(self, count: int | None) -> Generator[None]:
        """See Models."""
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(count or before)
        try:
            yield
        finally:
            torch.set_num_threads(before)
