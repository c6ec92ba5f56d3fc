"""What of an experiment's files nothing uses now: old samples and states, what kills left."""

import contextlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from topr_pipeline.components.graph import Node
from topr_pipeline.components.manifest import read_manifest
from topr_pipeline.components.samples import sets_in_use, store
from topr_pipeline.components.stages import STATE, state_path
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Experiment
from topr_pipeline.tables import remove


@dataclass(frozen=True)
class Leftover:
    """A file or folder that may go, why, and its size in bytes."""

    path: Path
    why: str
    size: int


def clean(
    name: str, nodes: Mapping[str, Node], experiment: Experiment, data: Path, dry_run: bool
) -> list[Leftover]:
    """Remove the leftovers of the experiment `name`, or only find them; artifacts are never among.

    Raises ToprError while something of the experiment is being made.
    """
    with _nothing_is_made(name, data):
        found = [
            *_old_sets(name, nodes, experiment, data),
            *_old_states(name, nodes, data),
            *_temporaries(data / name),
        ]
        for leftover in found if not dry_run else ():
            remove(leftover.path)
    return found


def _old_sets(
    name: str, nodes: Mapping[str, Node], experiment: Experiment, data: Path
) -> list[Leftover]:
    used = sets_in_use(nodes, experiment, data)
    sets = sorted(p for p in store(name, data).glob("*") if p.is_dir())
    why = "samples of an earlier policy, seed or way of sampling"
    return [Leftover(p, why, _size(p)) for p in sets if p.name not in used]


def _old_states(name: str, nodes: Mapping[str, Node], data: Path) -> list[Leftover]:
    """States of trainings, but for those that an artifact still to be made would go on from."""
    unmade = [n for n in nodes.values() if n.stage in ("base_policy", "checkpoint")]
    unmade = [n for n in unmade if not _made(n, nodes, data)]
    used = {state_path(node, data) for node in unmade}
    found = sorted(p for p in (data / name).rglob(f".*{STATE}") if p not in used)
    return [Leftover(p, "state of a training that nothing goes on from", _size(p)) for p in found]


def _made(node: Node, nodes: Mapping[str, Node], data: Path) -> bool:
    """Whether its artifact is there, from the code and the inputs of now."""
    manifest = read_manifest(node.manifest_path(data))
    if manifest is None or not node.path(data).exists():
        return False
    of_parents = {key: read_manifest(nodes[key].manifest_path(data)) for key in node.parents}
    inputs = {key: parent and parent.data_version for key, parent in of_parents.items()}
    return manifest.code == node.code and dict(manifest.inputs) == inputs


def _temporaries(folder: Path) -> list[Leftover]:
    found = set(folder.rglob(".*.tmp"))
    outermost = sorted(p for p in found if found.isdisjoint(p.parents))
    return [Leftover(p, "left by a process that was killed", _size(p)) for p in outermost]


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(p.stat().st_size for p in files)


@contextlib.contextmanager
def _nothing_is_made(name: str, data: Path) -> Generator[None]:
    """Hold all locks of the experiment: a writer that works now is no killed one."""
    with contextlib.ExitStack() as locks:
        for path in sorted((data / name).rglob(".*.lock")):
            try:
                locks.enter_context(FileLock(path, timeout=0))
            except Timeout:
                raise ToprError(
                    f"{name} is being made by another process (it holds {path}); "
                    "wait for it, or stop it, then clean"
                ) from None
        yield
