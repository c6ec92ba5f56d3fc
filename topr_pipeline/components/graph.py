"""An experiment unrolled into artifacts: which there are, what each reads, and its code version.

prompts  eval_prompts  iter_00/checkpoint -> iter_00/eval_scores
per iteration k: solutions -> rewards -> mix -> checkpoint -> eval_scores
with `top_up`, also: rewards -> top_up_solutions -> top_up_rewards -> mix
report
"""

import json
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
    WordProblems,
    fingerprint,
)
from topr_pipeline.prompts import found_files
from topr_pipeline.tables import code_hash, content_hash, signature

STAGE_VERSIONS: Mapping[str, str] = {
    "prompts": "1",
    "eval_prompts": "1",
    "base_policy": "2",
    "solutions": "2",
    "offline_solutions": "1",
    "rewards": "2",
    "offline_rewards": "1",
    "top_up_solutions": "1",
    "top_up_rewards": "1",
    "mix": "2",
    "checkpoint": "3",
    "eval_scores": "3",
    "report": "2",
}
"""Raised by hand when a stage's code changes what it makes from the same inputs. What samples are
drawn has a version of its own, `solutions.store.FORMAT`: it is in the key of the sample store.
"""

FOLDER_STAGES = frozenset({"base_policy", "checkpoint", "eval_scores", "report"})

CHECKS: Mapping[str, tuple[str, ...]] = {
    "solutions": ("logprob_agreement",),
    "rewards": ("unverifiable_share", "truncated_share", "invalid_share"),
    "top_up_solutions": ("logprob_agreement",),
    "top_up_rewards": ("unverifiable_share",),
    "mix": ("min_positives", "min_negatives"),
    "checkpoint": ("finite", "behaviour_logprobs"),
    "eval_scores": ("unverifiable_share",),
}
"""Names of the blocking checks per stage."""


@dataclass(frozen=True)
class Node:
    """One artifact. `key` is `<experiment>/...`, also its path below the data root.

    `code` maps each part of the YAML that its stage reads to a fingerprint; `limits` is the
    fingerprint of those that its checks compare with, which change no artifact.
    """

    key: str
    stage: str
    iteration: int | None
    parents: tuple[str, ...]
    code: Mapping[str, str]
    limits: str = ""

    @property
    def code_version(self) -> str:
        """Hash of `code`: what the stage reads of the YAML, and the version of the stage."""
        return fingerprint(json.dumps(self.code, sort_keys=True))

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
    versions = _read_by_stage(experiment, root)
    limits = _limits(experiment)
    nodes: dict[str, Node] = {}

    def add(key: str, stage: str, iteration: int | None, *parents: str, made: str = "") -> str:
        key = f"{name}/{key}"
        code = {part: fingerprint(said) for part, said in versions[made or stage].items()}
        code["the code of this stage"] = STAGE_VERSIONS[made or stage]
        nodes[key] = Node(key, stage, iteration, parents, code, limits.get(stage, ""))
        return key

    prompts = add("prompts", "prompts", None)
    eval_prompts = add("eval_prompts", "eval_prompts", None)
    base = checkpoint = add("iter_00/checkpoint", "base_policy", 0)
    scores = [add("iter_00/eval_scores", "eval_scores", 0, eval_prompts, checkpoint)]
    mixes: list[str] = []
    trained: list[str] = []
    rewarded: list[list[str]] = []
    replayed = experiment.mix.replay.iterations if experiment.mix.replay else 0
    for k in range(1, experiment.iterations + 1):
        it = f"iter_{k:02d}"
        if offline := experiment.offline if experiment.is_offline(k) else None:
            made = "offline_rewards" if offline.columns.reward else "rewards"
            # Of another policy, or as if of the base: log mu does not follow the policy.
            solutions = add(
                f"{it}/solutions", "solutions", k, prompts, base, made="offline_solutions"
            )
        else:
            made = "rewards"
            solutions = add(f"{it}/solutions", "solutions", k, prompts, checkpoint)
        rewards = add(f"{it}/rewards", "rewards", k, prompts, solutions, made=made)
        rewarded.append([solutions, rewards])
        if experiment.is_topped_up(k):
            read = (prompts, checkpoint, rewards)
            further = add(f"{it}/top_up_solutions", "top_up_solutions", k, *read)
            verified = add(f"{it}/top_up_rewards", "top_up_rewards", k, prompts, further)
            rewarded[-1] += [further, verified]
        sources = [key for keys in rewarded[-1 - replayed :] for key in keys]
        mixes.append(add(f"{it}/mix", "mix", k, *sources))
        checkpoint = add(f"{it}/checkpoint", "checkpoint", k, mixes[-1], checkpoint)
        trained.append(checkpoint)
        scores.append(add(f"{it}/eval_scores", "eval_scores", k, eval_prompts, checkpoint))
    add("report", "report", None, eval_prompts, *scores, *mixes, *trained)
    return nodes


Said = BaseModel | str | int | None


def _read_by_stage(e: Experiment, root: Path) -> dict[str, dict[str, Said]]:
    """What each stage reads of the YAML, by the name that a user knows it by."""
    seed = {"seed": e.seed}
    engine = {"sampling.engine's code": code_hash(e.sampling.engine)}
    objective = {"training.objective's code": code_hash(str(e.training.objective))}
    verifier = {"rewards.verifier's code": code_hash(e.rewards.verifier)}
    offline = _offline_read(e, root)
    return {
        "prompts": {
            **_prompts_read(e, e.prompts, "prompts", root),
            **_left_out(e, root),
            **offline,
        },
        "eval_prompts": _prompts_read(e, e.eval_prompts, "eval_prompts", root),
        "base_policy": {
            "policy": e.policy,
            "policy's files": _file_version(e.policy, root),
            **seed,
        },
        "solutions": {"sampling": e.sampling, **engine, **seed},
        "offline_solutions": {
            **offline,
            "sampling.prompts_per_iteration": e.sampling.prompts_per_iteration,
            "sampling.stop": "\n".join(e.sampling.stop),
            **seed,
        },
        "rewards": {"rewards": e.rewards, **verifier},
        "offline_rewards": offline,
        "top_up_solutions": {"top_up": e.top_up, "sampling": e.sampling, **engine, **seed},
        "top_up_rewards": {"rewards": e.rewards, **verifier},
        "mix": {"mix": e.mix, **(seed if e.mix.draws else {})},
        "checkpoint": {"training": e.training, **objective, **seed},
        "eval_scores": {
            "evaluation": e.evaluation,
            "sampling": e.evaluation.sampling(e.sampling),
            "rewards": _verifier_alone(e.rewards),
            **engine,
            **verifier,
            **seed,
        },
        "report": {},
    }


def _limits(e: Experiment) -> dict[str, str]:
    """Fingerprints of what the checks of a stage compare with."""
    unverifiable = fingerprint(e.rewards.limits.unverifiable)
    return {
        "solutions": fingerprint(*e.training.ratio_limits),
        "rewards": fingerprint(e.rewards.limits),
        "top_up_solutions": fingerprint(*e.training.ratio_limits),
        "top_up_rewards": unverifiable,
        "mix": fingerprint(e.mix.min_positives, e.mix.min_negatives),
        "checkpoint": fingerprint(*e.training.ratio_limits),
        "eval_scores": unverifiable,
    }


def _verifier_alone(rewards: Rewards) -> Rewards:
    """Scores count outcomes: what an outcome is worth does not change them."""
    return rewards.model_copy(update={"values": RewardValues()})


def _prompts_read(e: Experiment, section: Prompts, key: str, root: Path) -> dict[str, Said]:
    """What a prompt set is made from; in chat turns, the policy's tokenizer too."""
    read: dict[str, Said] = {
        key: section,
        f"{key}'s files": _file_version(section, root),
        "template": e.template,
    }
    if isinstance(section, WordProblems):
        read["seed"] = e.seed
    if isinstance(e.template.examples, str):
        read["template.examples' files"] = _versions(found_files(e.template.examples, root), root)
    if e.template.chat:
        read |= {"policy": e.policy, "policy's files": _file_version(e.policy, root)}
    return read


def _offline_read(e: Experiment, root: Path) -> dict[str, Said]:
    """Of the set; how many iterations read it changes no artifact."""
    if e.offline is None:
        return {}
    return {
        "offline": e.offline.model_copy(update={"iterations": 1}),
        "prompts": e.prompts,
        "prompts' files": _file_version(e.prompts, root),
    }


def _left_out(e: Experiment, root: Path) -> dict[str, Said]:
    """The eval prompts, where training prompts that are among them are dropped."""
    if not (isinstance(e.prompts, Rows) and e.prompts.doubtful == "drop"):
        return {}
    files = _file_version(e.eval_prompts, root)
    return {"eval_prompts": e.eval_prompts, "eval_prompts' files": files}


def _file_version(source: Prompts | Policy, root: Path) -> str:
    """Of the files that a section names: an edited one makes it stale.

    Prompt files by content. A policy's files, which may be large, by name, size and time.
    """
    match source:
        case FilePrompts():
            return _versions(found_files(source.path, root), root)
        case FolderPolicy():
            folder = root / source.path
            return signature(folder) if folder.is_dir() else ""
        case GgufPolicy():
            return signature(file) if (file := located_gguf(source, root)) else ""
        case _:
            return ""


def _versions(files: list[Path], root: Path) -> str:
    named = {f.relative_to(root) if f.is_relative_to(root) else f: f for f in files}
    return fingerprint(*(f"{name}:{content_hash(f)}" for name, f in named.items()))
