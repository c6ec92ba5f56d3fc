"""Scores by what the prompt set says of its prompts: subject, level, number of steps."""

import json
import re
from collections import Counter

import polars as pl

from topr_pipeline import tables
from topr_pipeline.evals.metrics import summarised
from topr_pipeline.experiment import Evaluation

MOST_GROUPS, LEAST_PROMPTS = 20, 5
"""A column breaks prompts down when it has 2 to MOST_GROUPS values, of LEAST_PROMPTS prompts each
on average."""

BREAKDOWN = tables.Table(
    "breakdown",
    {
        "column": (tables.TEXT, "of the prompt set, kept in `meta`"),
        "group": (tables.TEXT, "its value"),
        **tables.EVAL_SCORES.columns,
    },
    ("column", "group", "metric"),
)


def groups(prompts: pl.DataFrame) -> pl.DataFrame:
    """Which group a prompt is in, by column: prompt_id, column, group (text), in natural order.

    `prompts` is a PROMPTS table; its `meta` holds the columns of the prompt set that are neither
    prompt nor gold. Columns of texts, whole numbers or booleans are looked at.
    """
    rows = [
        (prompt_id, column, str(value))
        for prompt_id, meta in prompts.select("prompt_id", "meta").iter_rows()
        for column, value in json.loads(meta).items()
        if isinstance(value, str | int)
    ]
    prompts_of = Counter(column for _, column, _ in rows)
    values_of = {c: {v for _, of, v in rows if of == c} for c in prompts_of}
    broken_down = {
        c
        for c, values in values_of.items()
        if 2 <= len(values) <= MOST_GROUPS and prompts_of[c] >= LEAST_PROMPTS * len(values)
    }
    kept = sorted((r for r in rows if r[1] in broken_down), key=lambda r: (r[1], _natural(r[2])))
    schema = dict.fromkeys(("prompt_id", "column", "group"), pl.String)
    return pl.DataFrame(kept, schema=schema, orient="row")


def breakdown(
    values: pl.DataFrame, prompts: pl.DataFrame, evaluation: Evaluation, seed: int
) -> pl.DataFrame:
    """Every metric in every group, with intervals; no rows where `prompts` has no such column.

    `values` are those of `metrics.by_prompt` and `prompts` the eval prompts. A metric without a
    value in a group is left out there.
    """
    grouped = groups(prompts).join(values, on="prompt_id", maintain_order="left")
    parts = []
    for (column, group), rows in grouped.group_by("column", "group", maintain_order=True):
        own = rows.select(values.columns)
        defined = [m for m in own.columns[1:] if not own[m].is_nan().all()]
        scores = summarised(own.select("prompt_id", *defined), evaluation, seed)
        parts.append(scores.with_columns(column=pl.lit(column), group=pl.lit(group)))
    return BREAKDOWN.conform(pl.concat(parts)) if parts else BREAKDOWN.empty()


def _natural(text: str) -> list[tuple[int, str]]:
    """A sort key: `Level 2` before `Level 10`."""
    parts = re.findall(r"\d+|\D+", text)
    return [(int(p), "") if p.isdecimal() else (-1, p) for p in parts]
