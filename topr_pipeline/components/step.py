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
from topr_pipeline.components.samples import part_name
from topr_pipeline.components.stages import MAKERS, Work, sample_part
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Experiment
from topr_pipeline.progress import Shown
from topr_pipeline.tables import atomic_path, content_hash, disk_errors

USES_MODELS = frozenset({"base_policy", "solutions", "checkpoint", "eval_scores"})
UNITS = {"solutions": "samples", "eval_scores": "samples"}


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
    step leaves the old artifact. Raises ToprError when an input is missing or another process is
    making the same artifact.
    """
    target = node.path(place.data)
    inputs = {parent: _data_version(nodes[parent], place.data) for parent in node.parents}
    with _only_one(node, place.data):
        manifest = read_manifest(node.manifest_path(place.data))
        reused = not force and _is_current(node, manifest, inputs, target)
        if not reused:
            manifest = _remake(node, nodes, experiment, place, inputs, models, log)
        assert manifest is not None
        inspection = inspect(node, experiment, place.data, manifest.figures)
        manifest = replace(
            manifest,
            headline=inspection.headline,
            failed_checks={c.name: c.message for c in inspection.checks if not c.passed},
        )
        manifest.write(node.manifest_path(place.data))
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
    target = node.path(place.data)
    threads = models.threads(experiment.threads) if node.stage in USES_MODELS else nullcontext()
    shown = Shown(node.key, UNITS.get(node.stage, "steps"), log)
    with atomic_path(target) as out, shown as progress, threads:
        work = Work(node, nodes, experiment, place.root, place.data, out, inputs, models, progress)
        figures = MAKERS[node.stage](work)
    seconds = round(time.monotonic() - started, 2)
    return Manifest(node.code_version, content_hash(target), inputs, seconds, figures=figures)


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
    target, of = node.path(place.data), experiment.sampling.shards
    name = part_name(part, of)
    inputs = {parent: _data_version(nodes[parent], place.data) for parent in node.parents}
    with _only_one(node, place.data, name):
        if _is_current(node, read_manifest(node.manifest_path(place.data)), inputs, target):
            return
        shown = Shown(f"{node.key} {name}", UNITS[node.stage], log)
        with shown as progress, models.threads(experiment.threads):
            root, data = place.root, place.data
            work = Work(node, nodes, experiment, root, data, target, inputs, models, progress)
            sample_part(work, part, of)


def _is_current(
    node: Node, manifest: Manifest | None, inputs: Mapping[str, str], target: Path
) -> bool:
    return (
        manifest is not None
        and manifest.code_version == node.code_version
        and manifest.inputs == inputs
        and target.exists()
        and content_hash(target) == manifest.data_version
    )


def _data_version(parent: Node, data: Path) -> str:
    manifest = read_manifest(parent.manifest_path(data))
    if manifest is None or not parent.path(data).exists():
        raise ToprError(f"{parent.key} is not there; materialise it first")
    return manifest.data_version


def is_being_made(node: Node, data: Path, part: str = "") -> bool:
    """Whether some process is making the artifact now, or that part of it.

    A lock goes when its process does.
    """
    try:
        with _lock(node, data, part).acquire(timeout=0):
            return False
    except Timeout:
        return True


def _only_one(node: Node, data: Path, part: str = "") -> AbstractContextManager[object]:
    try:
        with disk_errors(node.path(data)):
            return _lock(node, data, part).acquire(timeout=0)
    except Timeout:
        raise ToprError(
            f"{node.key}{part and f' ({part})'} is being made by another process; "
            "wait for it, or stop it first"
        ) from None


def _lock(node: Node, data: Path, part: str = "") -> FileLock:
    path = node.path(data).parent
    path.mkdir(parents=True, exist_ok=True)
    return FileLock(path / f".{node.key.rsplit('/', 1)[-1]}{part and f'.{part}'}.lock")
