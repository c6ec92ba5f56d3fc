"""The only things that load a model, in one object: the Dagster resource `models`.

Tests replace it: `topr_pipeline.testing.FakeModels` has the same methods and loads nothing.
"""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from topr_pipeline.checkpoints.agreement import Agreement, Scorer
from topr_pipeline.checkpoints.jobs import BasePolicyJob, TrainJob
from topr_pipeline.checkpoints.launcher import Channel, run_job
from topr_pipeline.checkpoints.trained import Trained
from topr_pipeline.experiment import Sampling
from topr_pipeline.progress import Progress
from topr_pipeline.solutions.engine import Engine
from topr_pipeline.solutions.engines import make_engine
from topr_pipeline.solutions.offline import Encoder
from topr_pipeline.tables import SOLUTIONS, TIMED, TRAINING_LOG


class Models(Protocol):
    """What the stages need of models."""

    def base_policy(self, job: BasePolicyJob, progress: Progress) -> None:
        """Write the base policy into `job.folder`, with the log of its training if it has one."""
        ...

    def engine(self, sampling: Sampling) -> Engine:
        """The sampling engine, not started."""
        ...

    def agreement(self, solutions: Path, policy: Path) -> Agreement:
        """How far the log-probs in a solutions table are from those of the policy itself."""
        ...

    def encoder(self, policy: Path, sampling: Sampling) -> Encoder:
        """How the policy reads texts."""
        ...

    def scorer(self, policy: Path) -> Scorer:
        """Gives the policy's log-probs of completions; it is loaded once."""
        ...

    def train(self, job: TrainJob, progress: Progress) -> Trained:
        """Train the policy in `job.start`; write it and its training log into `job.folder`."""
        ...

    def threads(self, count: int | None) -> AbstractContextManager[None]:
        """A context in which engines use `count` CPU threads (None: as many as torch chooses)."""
        ...


@dataclass(frozen=True)
class RealModels:
    """transformers and the engines; training and pre-training run in processes of their own.

    `channel` is how these report; None reads their messages here.
    """

    channel: Channel | None = None

    def base_policy(self, job: BasePolicyJob, progress: Progress) -> None:
        """See Models."""
        run_job(job, progress, self.channel)

    def engine(self, sampling: Sampling) -> Engine:
        """See Models."""
        return make_engine(sampling.engine)

    def agreement(self, solutions: Path, policy: Path) -> Agreement:
        """See Models."""
        from topr_pipeline.checkpoints.agreement import agreement

        return agreement(SOLUTIONS.scan(solutions), policy)

    def encoder(self, policy: Path, sampling: Sampling) -> Encoder:
        """See Models."""
        from topr_pipeline.solutions.policy_text import PolicyText

        text = PolicyText(policy, sampling)
        return Encoder(text.tokenizer, frozenset(text.eos), text.context, sampling.stop)

    def scorer(self, policy: Path) -> Scorer:
        """See Models."""
        from topr_pipeline.checkpoints.agreement import scorer

        return scorer(policy)

    def train(self, job: TrainJob, progress: Progress) -> Trained:
        """See Models."""
        figures = run_job(job, progress, self.channel)
        return Trained(TRAINING_LOG.read(job.folder / TIMED), figures["mean_clipped_ratio"])

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
