"""An experiment unrolled into artifacts: which there are, what each reads, and its code version.

prompts  eval_prompts  iter_00/checkpoint -> iter_00/eval_scores
per iteration k: solutions -> rewards -> mix -> checkpoint -> eval_scores
report
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from topr_pipeline.checkpoints.sources import located_gguf
from topr_pipeline.experiment import (
    Experiment,
    FilePrompts,
    FolderPolicy,
    GgufPolicy,
    Policy,
    Prompts,
    Rewards,
    RewardValues,
    Rows,
    fingerprint,
)
from topr_pipeline.prompts import found_files

STAGE_VERSIONS: Mapping[str, str] = {
    "prompts": "1",
    "eval_prompts": "1",
    "base_policy": "1",
    "solutions": "2",
    "rewards": "1",
    "mix": "1",
    "checkpoint": "1",
    "eval_scores": "2",
    "report": "1",
}
"""Raised by hand when a stage's code changes what it makes from the same inputs."""

FOLDER_STAGES = frozenset({"base_policy", "checkpoint", "eval_scores", "report"})

CHECKS: Mapping[str, tuple[str, ...]] = {
    "solutions": ("logprob_agreement",),
    "rewards": ("unverifiable_share", "truncated_share", "invalid_share"),
    "mix": ("min_positives", "min_negatives"),
    "checkpoint": ("finite", "behaviour_logprobs"),
}
"""Names of the blocking checks per stage."""


@dataclass(frozen=True)
class Node:
    """One artifact. `key` is `<experiment>/...`, also its path below the data root."""

    key: str
    stage: str
    iteration: int | None
    parents: tuple[str, ...]
    code_version: str

    def path(self, data: Path) -> Path:
        """The artifact: a Parquet file or a folder."""
        return data / (self.key if self.stage in FOLDER_STAGES else f"{self.key}.parquet")

    def manifest_path(self, data: Path) -> Path:
        """Its manifest."""
        return data / f"{self.key}.json"


def unroll(name: str, experiment: Experiment, root: Path) -> dict[str, Node]:
    """All artifacts of an experiment by key, parents before children.

    `root` is the project's folder, below which the YAML's relative paths lie.
    """
    versions = _code_versions(experiment, root)
    nodes: dict[str, Node] = {}

    def add(key: str, stage: str, iteration: int | None, *parents: str) -> str:
        key = f"{name}/{key}"
        code_version = f"{STAGE_VERSIONS[stage]}-{versions[stage]}"
        nodes[key] = Node(key, stage, iteration, parents, code_version)
        return key

    prompts = add("prompts", "prompts", None)
    eval_prompts = add("eval_prompts", "eval_prompts", None)
    checkpoint = add("iter_00/checkpoint", "base_policy", 0)
    scores = [add("iter_00/eval_scores", "eval_scores", 0, eval_prompts, checkpoint)]
    mixes = []
    for k in range(1, experiment.iterations + 1):
        it = f"iter_{k:02d}"
        solutions = add(f"{it}/solutions", "solutions", k, prompts, checkpoint)
        rewards = add(f"{it}/rewards", "rewards", k, prompts, solutions)
        mixes.append(add(f"{it}/mix", "mix", k, solutions, rewards))
        checkpoint = add(f"{it}/checkpoint", "checkpoint", k, mixes[-1], checkpoint)
        scores.append(add(f"{it}/eval_scores", "eval_scores", k, eval_prompts, checkpoint))
    add("report", "report", None, *scores, *mixes)
    return nodes


def _code_versions(e: Experiment, root: Path) -> dict[str, str]:
    """Per stage the fingerprint of just what it reads of the YAML."""
    return {
        "prompts": fingerprint(*_prompts_version(e, e.prompts, root), *_left_out(e, root)),
        "eval_prompts": fingerprint(*_prompts_version(e, e.eval_prompts, root)),
        "base_policy": fingerprint(e.policy, _file_version(e.policy, root), e.seed),
        "solutions": fingerprint(e.sampling, e.seed),
        "rewards": fingerprint(e.rewards),
        "mix": fingerprint(e.mix),
        "checkpoint": fingerprint(e.training, e.seed),
        "eval_scores": fingerprint(
            e.evaluation, e.evaluation.sampling(e.sampling), _verifier_alone(e.rewards), e.seed
        ),
        "report": fingerprint(),
    }


def _verifier_alone(rewards: Rewards) -> Rewards:
    """Scores count outcomes: what an outcome is worth does not change them."""
    return rewards.model_copy(update={"values": RewardValues()})


def _prompts_version(e: Experiment, section: Prompts, root: Path) -> list[BaseModel | str | int]:
    """What a prompt set is made from; in chat turns, the policy's tokenizer too."""
    parts: list[BaseModel | str | int] = [section, _file_version(section, root), e.seed, e.template]
    if isinstance(e.template.examples, str):
        parts.append(_versions(found_files(e.template.examples, root)))
    if e.template.chat:
        parts += [e.policy, _file_version(e.policy, root)]
    return parts


def _left_out(e: Experiment, root: Path) -> list[BaseModel | str | int]:
    """The eval prompts, where training prompts that are among them are dropped."""
    drops = isinstance(e.prompts, Rows) and e.prompts.doubtful == "drop"
    return [e.eval_prompts, _file_version(e.eval_prompts, root)] if drops else []


def _file_version(source: Prompts | Policy, root: Path) -> str:
    """Names, sizes and times of the files that a section names: an edited file makes it stale."""
    match source:
        case FilePrompts():
            return _versions(found_files(source.path, root))
        case FolderPolicy():
            return _versions(sorted(p for p in (root / source.path).rglob("*") if p.is_file()))
        case GgufPolicy():
            return _versions([file] if (file := located_gguf(source, root)) else [])
        case _:
            return ""


def _versions(files: list[Path]) -> str:
    said = [f"{f}:{f.stat().st_size}:{f.stat().st_mtime_ns}" for f in files]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]
