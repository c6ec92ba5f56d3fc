"""Which artifacts are missing or stale, and what a run would therefore launch."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from topr_pipeline.components.graph import Node
from topr_pipeline.components.manifest import Manifest, read_manifest
from topr_pipeline.tables import signature

State = Literal["fresh", "missing", "stale", "downstream", "forced"]


@dataclass(frozen=True)
class Planned:
    """One artifact's state and, unless it is fresh, the reason in a few words.

    `failed`: a check of it failed, and nothing that it is made from has changed since.
    """

    node: Node
    state: State
    reason: str = ""
    manifest: Manifest | None = None
    failed: bool = False

    @property
    def key(self) -> str:
        """The artifact's key."""
        return self.node.key

    def record(self) -> dict[str, object]:
        """All there is to say of it, for `topr status --json`."""
        manifest = self.manifest
        return {
            "asset": self.key,
            "state": self.state,
            "reason": self.reason,
            "seconds": manifest.seconds if manifest else None,
            "headline": manifest.headline if manifest else None,
            "data_version": manifest.data_version if manifest else None,
        }


def plan(
    nodes: Mapping[str, Node],
    data: Path,
    recorded: Callable[[str], str | None] | None = None,
    forced: Iterable[str] = (),
) -> list[Planned]:
    """The state of every artifact in `nodes` (parents before children).

    An artifact is fresh when it is on disk, was made by the present code version from the present
    versions of its parents, and all of those are fresh. `recorded(key)` gives the data version that
    the Dagster instance knows; an artifact that it does not know is stale too (its step will find
    that nothing is to be done, and record it). `forced` keys are made again whatever their state.
    """
    planned: dict[str, Planned] = {}
    for key, node in nodes.items():
        manifest = read_manifest(node.manifest_path(data))
        waiting = [p for p in node.parents if p in planned and planned[p].state != "fresh"]
        state, reason = _own_state(node, manifest, data, planned)
        failed = reason.startswith(CHECK_FAILED) and not waiting
        if state == "fresh" and manifest and recorded and recorded(key) != manifest.data_version:
            state, reason = "stale", "not recorded in this Dagster instance"
        if key in forced:
            state, reason = "forced", "asked for"
        elif state == "fresh" and waiting:
            state, reason = "downstream", f"if {waiting[0]} changes"
        planned[key] = Planned(node, state, reason, manifest, failed)
    return list(planned.values())


CHECK_FAILED = "check failed"


def _own_state(
    node: Node, manifest: Manifest | None, data: Path, planned: Mapping[str, Planned]
) -> tuple[State, str]:
    path = node.path(data)
    if not path.exists():
        return "missing", "never made" if manifest is None else "deleted"
    if manifest is None:
        return "missing", "not finished"
    if manifest.code != node.code:
        return "stale", f"{', '.join(_differing(manifest.code, node.code))} changed"
    for parent in node.parents:
        known = planned[parent].manifest if parent in planned else None
        if known and manifest.inputs.get(parent) != known.data_version:
            return "stale", f"{parent} changed"
    if set(manifest.inputs) != set(node.parents):
        return "stale", "its inputs are others now"
    if manifest.limits != node.limits:
        return "stale", "the limits of its checks changed"
    if manifest.signature != signature(path):
        return "stale", "its files were touched"
    if manifest.failed_checks:
        return "stale", f"{CHECK_FAILED}: {', '.join(manifest.failed_checks)}"
    return "fresh", ""


def _differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [part for part in {**before, **now} if before.get(part) != now.get(part)]
