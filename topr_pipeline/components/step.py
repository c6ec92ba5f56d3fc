"""One step: make an artifact, or find that it is already made from the very same inputs."""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from topr_pipeline.components.graph import Node
from topr_pipeline.components.inspection import Inspection, inspect
from topr_pipeline.components.manifest import Manifest, read_manifest
from topr_pipeline.components.models import Models
from topr_pipeline.components.samples import SAMPLED_STAGES, forget_samples, part_name
from topr_pipeline.components.stages import MAKERS, Work, sample_part, state_path
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Experiment
from topr_pipeline.progress import Shown
from topr_pipeline.tables import atomic_path, content_hash, disk_errors, mend, remove, signature

USES_MODELS = frozenset({"base_policy", "checkpoint", *SAMPLED_STAGES})
UNCHECKED = {"unchecked": "its step ended before its checks were made"}
UNITS = dict.fromkeys(SAMPLED_STAGES, "samples")


@dataclass(frozen=True)
class Made:
    """What a step leaves: the manifest, what to show of the artifact, and whether it was reused."""

    manifest: Manifest
    inspection: Inspection
    reused: bool


@dataclass(frozen=True)
class Place:
    """Where an experiment lives: the project's folder and the data root."""

    root: Path
    data: Path


def make(
    node: Node,
    nodes: Mapping[str, Node],
    experiment: Experiment,
    place: Place,
    models: Models,
    log: Callable[[str], None] = logging.info,
    force: bool = False,
) -> Made:
    """Make `node`'s artifact, unless it is on disk from the same code and inputs.

    The artifact is written to a temporary name and renamed, then its manifest is written; a killed
    step leaves the old artifact, or a new one without a manifest, which is made again. Raises
    ToprError when an input is missing or another process is making the same artifact.
    """
    manifest_path = node.manifest_path(place.data)
    with _only_one(node, place.data):
        mend(node.path(place.data))
        inputs = _inputs(node, nodes, place.data)
        manifest = read_manifest(manifest_path)
        reused = manifest is not None and not force and _is_current(node, manifest, inputs, place)
        if manifest is None or not reused:
            if force and node.stage in SAMPLED_STAGES:
                forget_samples(node, experiment, place.data, inputs)
            manifest = _remake(node, nodes, experiment, place, inputs, models, log)
        inspection = inspect(node, experiment, place.data, manifest.figures)
        manifest = replace(
            manifest,
            signature=signature(node.path(place.data)),
            limits=node.limits,
            headline=inspection.headline,
            failed_checks={c.name: c.message for c in inspection.checks if not c.passed},
        )
        manifest.write(manifest_path)
    return Made(manifest, inspection, reused)


def _remake(
    node: Node,
    nodes: Mapping[str, Node],
    experiment: Experiment,
    place: Place,
    inputs: Mapping[str, str],
    models: Models,
    log: Callable[[str], None],
) -> Manifest:
    started = time.monotonic()
    manifest_path = node.manifest_path(place.data)
    # Trainings are told their threads: they have processes of their own.
    sampled = node.stage in SAMPLED_STAGES
    threads = models.threads(experiment.threads) if sampled else nullcontext()
    shown = Shown(node.key, UNITS.get(node.stage, "steps"), log)
    with atomic_path(node.path(place.data)) as out:
        with shown as progress, threads:
            work = Work(
                node, nodes, experiment, place.root, place.data, out, inputs, models, progress
            )
            figures = MAKERS[node.stage](work)
        if inputs != _inputs(node, nodes, place.data):
            raise ToprError(f"an input of {node.key} was made again meanwhile; run once more")
        version = content_hash(out)
        remove(manifest_path)
    seconds = round(time.monotonic() - started, 2)
    manifest = Manifest(
        node.code, version, inputs, seconds=seconds, figures=figures, failed_checks=UNCHECKED
    )
    manifest.write(manifest_path)
    remove(state_path(node, place.data))
    return manifest


def make_part(
    node: Node,
    nodes: Mapping[str, Node],
    experiment: Experiment,
    place: Place,
    models: Models,
    part: int,
    log: Callable[[str], None] = logging.info,
) -> None:
    """Sample part `part` of `sampling.shards` of the solutions `node` into the store.

    Nothing is done where the artifact is current. The errors are those of `make`.
    """
    of = experiment.sampling.shards
    name = part_name(part, of)
    with _only_one(node, place.data, name):
        inputs = _inputs(node, nodes, place.data)
        manifest = read_manifest(node.manifest_path(place.data))
        if manifest is not None and _is_current(node, manifest, inputs, place):
            return
        shown = Shown(f"{node.key} {name}", UNITS[node.stage], log)
        with shown as progress, models.threads(experiment.threads):
            root, data, out = place.root, place.data, node.path(place.data)
            work = Work(node, nodes, experiment, root, data, out, inputs, models, progress)
            sample_part(work, part, of)


def _is_current(node: Node, manifest: Manifest, inputs: Mapping[str, str], place: Place) -> bool:
    path = node.path(place.data)
    return (
        manifest.code == node.code
        and manifest.inputs == inputs
        and path.exists()
        and content_hash(path) == manifest.data_version
    )


def _inputs(node: Node, nodes: Mapping[str, Node], data: Path) -> dict[str, str]:
    return {parent: _data_version(nodes[parent], data) for parent in node.parents}


def _data_version(parent: Node, data: Path) -> str:
    manifest = read_manifest(parent.manifest_path(data))
    if manifest is None or not parent.path(data).exists():
        raise ToprError(f"{parent.key} is not there; materialise it first")
    if manifest.failed_checks:
        failed = "; ".join(manifest.failed_checks.values())
        raise ToprError(f"{parent.key} did not pass its checks ({failed}); materialise it again")
    return manifest.data_version


def _only_one(node: Node, data: Path, part: str = "") -> AbstractContextManager[object]:
    try:
        with disk_errors(node.path(data)):
            return _lock(node, data, part).acquire(timeout=2)
    except Timeout:
        raise ToprError(
            f"{node.key}{part and f' ({part})'} is being made by another process; "
            "wait for it, or stop it first"
        ) from None


def _lock(node: Node, data: Path, part: str = "") -> FileLock:
    path = node.path(data).parent
    path.mkdir(parents=True, exist_ok=True)
    return FileLock(path / f".{node.key.rsplit('/', 1)[-1]}{part and f'.{part}'}.lock")
