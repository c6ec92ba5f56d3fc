"""What sampling an artifact asks for: which distribution, in how many parts, and what it cost.

The parts of a fan-out share the sample store only. What each cost lies beside the artifact until
that is made:

    data/tiny/iter_01/.solutions.parts/00of04.json
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from topr_pipeline.components.graph import Node
from topr_pipeline.components.manifest import read_manifest
from topr_pipeline.experiment import Experiment, Sampling
from topr_pipeline.solutions import Cost, forget, set_fingerprint
from topr_pipeline.tables import atomic_path, remove

SAMPLED_STAGES = ("solutions", "top_up_solutions", "eval_scores")


def store(key: str, data: Path) -> Path:
    """Where the finished samples of the experiment of the artifact `key` lie, by fingerprint."""
    return data / key.split("/", 1)[0] / "samples"


def sampling_of(node: Node, experiment: Experiment) -> tuple[Sampling, int]:
    """How `node`'s samples are drawn, and with which seed."""
    if node.stage == "eval_scores":
        return experiment.evaluation.sampling(experiment.sampling), experiment.seed_for(
            "evaluation"
        )
    return experiment.sampling, experiment.seed_for(f"solutions {node.iteration or 0}")


def sets_in_use(nodes: Mapping[str, Node], experiment: Experiment, data: Path) -> set[str]:
    """Fingerprints of the sample sets that the experiment, as it is now, would read or go on with.

    A checkpoint that was not made yet has none.
    """
    found = set()
    for node in nodes.values():
        if node.stage not in SAMPLED_STAGES:
            continue
        sampling, seed = sampling_of(node, experiment)
        for parent in node.parents:
            manifest = read_manifest(nodes[parent].manifest_path(data))
            if manifest and nodes[parent].stage in ("base_policy", "checkpoint"):
                found.add(set_fingerprint(manifest.data_version, sampling, seed))
    return found


def sample_set(node: Node, experiment: Experiment, data: Path, inputs: Mapping[str, str]) -> Path:
    """Where the samples lie that `node` is made from; `inputs` are its parents' data versions."""
    (policy,) = [version for key, version in inputs.items() if key.endswith("/checkpoint")]
    return store(node.key, data) / set_fingerprint(policy, *sampling_of(node, experiment))


def forget_samples(
    node: Node, experiment: Experiment, data: Path, inputs: Mapping[str, str]
) -> None:
    """Delete of the store what `node` would find there; of a top-up only the further samples."""
    folder = sample_set(node, experiment, data, inputs)
    if node.stage == "top_up_solutions":
        forget(folder, experiment.sampling.samples_per_prompt)
    else:
        remove(folder)


def part_name(part: int, of: int) -> str:
    """`00of04`."""
    return f"{part:02d}of{of:02d}"


def note_cost(node: Node, data: Path, name: str, cost: Cost) -> None:
    """Keep what a part cost, for whoever makes the artifact."""
    with atomic_path(_parts(node, data) / f"{name}.json") as temporary:
        temporary.write_text(json.dumps(asdict(cost)))


def noted_costs(node: Node, data: Path) -> list[Cost]:
    """What the parts cost that were sampled since the artifact was made; then it is forgotten."""
    files = sorted(_parts(node, data).glob("*.json"))
    costs = [Cost(**json.loads(file.read_text())) for file in files]
    for file in files:
        file.unlink()
    return costs


def _parts(node: Node, data: Path) -> Path:
    path = node.path(data)
    return path.with_name(f".{path.stem}.parts")
