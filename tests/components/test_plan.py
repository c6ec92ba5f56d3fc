from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from topr_pipeline.components.graph import Node
from topr_pipeline.components.manifest import Manifest
from topr_pipeline.components.plan import plan
from topr_pipeline.tables import signature

NODES = {
    n.key: n
    for n in [
        Node("e/prompts", "prompts", None, (), {"yaml": "p1"}),
        Node("e/iter_01/rewards", "rewards", 1, ("e/prompts",), {"yaml": "r1"}),
        Node("e/iter_01/mix", "mix", 1, ("e/iter_01/rewards",), {"yaml": "m1"}),
        Node("e/side", "prompts", None, (), {"yaml": "s1"}),
    ]
}


def made(node: Node, data: Path, version: str, inputs: dict[str, str], **more: Any) -> None:
    manifest = Manifest(node.code, version, inputs, signature(node.path(data)), **more)
    manifest.write(node.manifest_path(data))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """All artifacts made, of data version v-<key>."""
    for key, node in NODES.items():
        inputs = {p: f"v-{p}" for p in node.parents}
        node.path(tmp_path).parent.mkdir(parents=True, exist_ok=True)
        node.path(tmp_path).write_text("a table")
        made(node, tmp_path, f"v-{key}", inputs)
    return tmp_path


def states(data: Path, **options) -> dict[str, str]:
    return {p.key: p.state for p in plan(options.pop("nodes", NODES), data, **options)}


def stale(key: str, then: str) -> dict[str, str]:
    """All fresh but `key` and what comes after it."""
    order = ["e/prompts", "e/iter_01/rewards", "e/iter_01/mix"]
    after = order[order.index(key) + 1 :]
    return {k: then if k == key else "downstream" if k in after else "fresh" for k in NODES}


def test_nothing_is_planned_when_all_was_made(data: Path):
    assert set(states(data).values()) == {"fresh"}


def test_everything_is_missing_at_first(tmp_path: Path):
    assert set(states(tmp_path).values()) == {"missing"}


@pytest.mark.parametrize("key", ["e/prompts", "e/iter_01/rewards", "e/iter_01/mix"])
def test_a_deleted_artifact_is_missing_and_what_depends_on_it_downstream(data: Path, key: str):
    NODES[key].path(data).unlink()
    assert states(data) == stale(key, "missing")


@pytest.mark.parametrize("key", ["e/prompts", "e/iter_01/rewards", "e/iter_01/mix"])
def test_a_changed_code_version_is_stale_and_what_depends_on_it_downstream(data: Path, key: str):
    nodes = {**NODES, key: replace(NODES[key], code={"yaml": "new"})}
    assert states(data, nodes=nodes) == stale(key, "stale")


def test_an_artifact_without_its_manifest_was_not_finished(data: Path):
    NODES["e/iter_01/mix"].manifest_path(data).unlink()
    assert states(data) == stale("e/iter_01/mix", "missing")


def test_an_artifact_made_from_another_version_of_its_parent_is_stale(data: Path):
    made(NODES["e/prompts"], data, "v-other", {})
    assert states(data) == stale("e/iter_01/rewards", "stale")


def test_an_artifact_whose_check_failed_is_stale(data: Path):
    node = NODES["e/iter_01/rewards"]
    inputs = {"e/prompts": "v-e/prompts"}
    made(node, data, f"v-{node.key}", inputs, failed_checks={"x": "no"})
    assert states(data) == stale(node.key, "stale")


def test_the_reason_names_the_part_of_the_yaml_that_changed(data: Path):
    node = replace(NODES["e/prompts"], code={"yaml": "p1", "seed": "0"})
    assert plan({node.key: node}, data)[0].reason == "seed changed"


def test_changed_limits_make_an_artifact_stale_to_be_checked_again(data: Path):
    nodes = {**NODES, "e/iter_01/mix": replace(NODES["e/iter_01/mix"], limits="new")}
    assert states(data, nodes=nodes) == stale("e/iter_01/mix", "stale")


def test_a_touched_file_is_looked_at_again(data: Path):
    NODES["e/iter_01/mix"].path(data).write_text("another table")
    assert states(data) == stale("e/iter_01/mix", "stale")


def test_other_parents_than_it_was_made_from_make_an_artifact_stale(data: Path):
    node = replace(NODES["e/iter_01/mix"], parents=("e/iter_01/rewards", "e/side"))
    order = {k: NODES[k] for k in ("e/prompts", "e/side", "e/iter_01/rewards")}
    assert states(data, nodes={**order, node.key: node})[node.key] == "stale"


def test_an_artifact_unknown_to_the_instance_is_stale(data: Path):
    known = {k: f"v-{k}" for k in NODES if k != "e/iter_01/rewards"}
    assert states(data, recorded=known.get) == stale("e/iter_01/rewards", "stale")


def test_a_forced_artifact_is_planned_with_what_depends_on_it(data: Path):
    assert states(data, forced=["e/iter_01/rewards"]) == stale("e/iter_01/rewards", "forced")
