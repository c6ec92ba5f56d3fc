"""What a training process is told: one JSON file. Importing this does not import torch."""

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Discriminator, TypeAdapter

from topr_pipeline.experiment import Policy, Training
from topr_pipeline.section import Natural, Positive, Section


class _Job(Section):
    """`folder` is where the policy goes and its log, `state` what survives a kill until then.

    `state` and `logs` are None where nothing is kept: `logs` is for `training.report_to`.
    """

    model_config = ConfigDict(ser_json_inf_nan="constants")

    name: str = "training"
    folder: Path
    state: Path | None = None
    logs: Path | None = None
    seed: Natural = 0
    threads: Positive | None = None


class TrainJob(_Job):
    """Train the policy in the folder `start` on the table `mix`.

    `on_policy` is whether `start` is the policy of log mu of the newest iteration's samples.
    """

    kind: Literal["train"] = "train"
    mix: Path
    start: Path
    training: Training = Training()
    on_policy: bool = True


class BasePolicyJob(_Job):
    """Prepare the base policy: read it and save it anew, or pre-train a tiny one."""

    kind: Literal["base_policy"] = "base_policy"
    policy: Policy


Job = TrainJob | BasePolicyJob
_JOB: TypeAdapter[Job] = TypeAdapter(Annotated[Job, Discriminator("kind")])


def write_job(job: Job, file: Path) -> None:
    """`job` as JSON; `read_job` gives it back."""
    file.write_text(job.model_dump_json())


def read_job(file: Path) -> Job:
    """The job in `file`."""
    return _JOB.validate_python(json.loads(file.read_text()))


def processes_of(job: Job) -> int:
    """How many processes work on it: a tiny policy is pre-trained by one."""
    return job.training.launch.processes if isinstance(job, TrainJob) else 1
