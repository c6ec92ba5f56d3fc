"""What changed between the mix of an iteration and the one that was trained on before it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from topr_pipeline.components.graph import Node
from topr_pipeline.components.manifest import Manifest, read_manifest
from topr_pipeline.errors import ToprError
from topr_pipeline.views import query

FIGURES = """
SELECT iteration,
  count(*) AS rows,
  count(DISTINCT prompt_id) AS prompts,
  count(*) FILTER (sampled_iteration < iteration) AS "rows of earlier iterations",
  count(*) FILTER (reward > 0) AS positives,
  count(*) FILTER (reward <= 0) AS others,
  avg(CAST(reward > 0 AS INT)) AS "positive share p",
  coalesce(sum(advantage) FILTER (advantage > 0), 0) / sum(abs(advantage)) AS "effective share p~",
  avg(reward - advantage) AS "baseline c",
  avg(advantage) AS "mean advantage",
  avg(len(token_ids)) AS "mean tokens",
  avg(logprob) AS "mean log mu"
FROM mixes WHERE experiment = $experiment AND iteration IN ($before, $after) GROUP BY iteration
"""

SOLVED = """
SELECT iteration, count(*) AS "prompts sampled", avg(rate) AS "solve rate",
  count(*) FILTER (rate = 0) AS "prompts never solved",
  count(*) FILTER (rate = 1) AS "prompts always solved"
FROM (SELECT iteration, prompt_id,
        avg(CAST(outcome = 'correct' AS INT)) FILTER (outcome <> 'unverifiable') AS rate
      FROM rewards
      WHERE experiment = $experiment AND iteration IN ($before, $after) GROUP BY ALL)
GROUP BY iteration
"""

SHARED = """
WITH a AS (SELECT DISTINCT prompt_id FROM mixes
           WHERE experiment = $experiment AND iteration = $before),
     b AS (SELECT DISTINCT prompt_id FROM mixes
           WHERE experiment = $experiment AND iteration = $after)
SELECT (SELECT count(*) FROM a SEMI JOIN b USING (prompt_id)) AS both,
       (SELECT count(*) FROM a ANTI JOIN b USING (prompt_id)) AS gone,
       (SELECT count(*) FROM b ANTI JOIN a USING (prompt_id)) AS new
"""


@dataclass(frozen=True)
class Difference:
    """`figures` has a row per figure: figure, before, after, change; `notes` are sentences."""

    before: int
    after: int
    figures: pl.DataFrame
    notes: list[str]


def difference(name: str, nodes: Mapping[str, Node], iteration: int, data: Path) -> Difference:
    """The mix of `iteration` against that of the iteration before.

    Raises ToprError for an iteration that has none before it, and for a mix that is not there.
    """
    before = iteration - 1
    mixes = {n.iteration: n for n in nodes.values() if n.stage == "mix"}
    if iteration not in mixes or before not in mixes:
        raise ToprError(
            f"{name}: iteration {iteration} has no mix before it to compare with; its iterations "
            f"with one are 2 to {max(k for k in mixes if k is not None) if mixes else 0}"
        )
    manifests = {k: read_manifest(mixes[k].manifest_path(data)) for k in (before, iteration)}
    for k, manifest in manifests.items():
        if manifest is None:
            raise ToprError(f"{mixes[k].key} is not there yet; run `topr run {name} --through {k}`")
    asked = {"experiment": name, "before": before, "after": iteration}
    figures = [_side_by_side(query(sql, data, asked), before) for sql in (FIGURES, SOLVED)]
    shared = query(SHARED, data, asked).row(0, named=True)
    notes = [
        f"{shared['both']} prompts are in both mixes, {shared['gone']} only in the one before, "
        f"{shared['new']} only in this one"
    ]
    notes += _made_differently(manifests[before], manifests[iteration])
    notes += _trained_on_another(nodes, mixes[iteration], manifests[iteration], data)
    return Difference(before, iteration, pl.concat(figures), notes)


def _side_by_side(rows: pl.DataFrame, before: int) -> pl.DataFrame:
    """One row per figure; what an iteration has no rows for is null."""
    found = {row["iteration"] == before: row for row in rows.iter_rows(named=True)}
    a, b = (found.get(first, dict.fromkeys(rows.columns)) for first in (True, False))
    return pl.DataFrame(
        [
            {
                "figure": figure,
                "before": _number(a[figure]),
                "after": _number(b[figure]),
                "change": None
                if a[figure] is None or b[figure] is None
                else _number(b[figure] - a[figure], "+"),
            }
            for figure in rows.columns[1:]
        ]
    )


def _number(value: float | None, sign: str = "") -> str | None:
    if value is None:
        return None
    return f"{value:{sign},}" if isinstance(value, int) else f"{value:{sign}.4g}"


def _made_differently(before: Manifest | None, after: Manifest | None) -> list[str]:
    if before is None or after is None:
        return []
    parts = [
        part
        for part in sorted({*before.code, *after.code})
        if before.code.get(part) != after.code.get(part)
    ]
    return [f"They were made from different versions of: {', '.join(parts)}"] if parts else []


def _trained_on_another(
    nodes: Mapping[str, Node], mix: Node, manifest: Manifest | None, data: Path
) -> list[str]:
    """The checkpoint after it came from a version of this mix that is no more."""
    for node in nodes.values():
        if node.stage == "checkpoint" and mix.key in node.parents:
            trained = read_manifest(node.manifest_path(data))
            read = trained.inputs.get(mix.key) if trained else None
            if manifest and read and read != manifest.data_version:
                return [f"{node.key} was trained on an earlier version of this mix"]
    return []
