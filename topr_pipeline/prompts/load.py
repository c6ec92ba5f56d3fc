"""Load a prompt set, keep training and evaluation apart, deal prompts out to iterations."""

import hashlib
import logging
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import polars as pl

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Columns, FilePrompts, HubPrompts, Prompts, Rows, WordProblems
from topr_pipeline.prompts.files import read_records
from topr_pipeline.prompts.hub import read_hub
from topr_pipeline.prompts.text import normalise, prompt_id
from topr_pipeline.prompts.values import (
    Record,
    after_hashes,
    as_json,
    did_you_mean,
    gold_text,
    shown,
)
from topr_pipeline.prompts.word_problems import problems
from topr_pipeline.tables import PROMPTS

__all__ = [
    "apart",
    "column",
    "for_iteration",
    "load_prompts",
    "normalise",
    "prompt_id",
    "prompt_text",
    "records",
]

Row = dict[str, Any]
log = logging.getLogger(__name__)


def load_prompts(
    spec: Prompts, root: Path, seed: int, key: str, others: Collection[str] = ()
) -> pl.DataFrame:
    """The questions of one YAML section, in the order of the files or of the generator.

    `root` is what a file's path is relative to, `seed` that of the experiment (for generators),
    `key` the section's name, "prompts" or "eval_prompts". Returns a PROMPTS table, not yet put into
    the template: `source` is "file:row", "data set split[row]" or "word_problems", `split` that of
    the generator or of the section, `meta` holds all other columns but `others`. Raises ToprError
    with file, row and key for whatever cannot be used.
    """
    if isinstance(spec, WordProblems):
        rows = list(_generated(spec, seed, key))
    else:
        rows = _distinct(_collected(spec, root, key, others), spec, key)[: spec.limit]
        if not rows:
            said = spec.path if isinstance(spec, FilePrompts) else f"{spec.name} {spec.split}"
            where = "path" if isinstance(spec, FilePrompts) else "name"
            raise ToprError(f"{said!r} holds no prompt ({key}.{where}); give at least one")
    return PROMPTS.conform(pl.DataFrame(rows, schema=PROMPTS.schema))


def apart(prompts: pl.DataFrame, eval_prompts: pl.DataFrame, spec: Prompts) -> pl.DataFrame:
    """`prompts` without those that are also in `eval_prompts`, by normalised text.

    Raises ToprError when there are any, unless `prompts.doubtful` says to drop them.
    """
    both = eval_prompts.join(prompts, on="prompt_id", suffix="_train", maintain_order="left")
    if both.is_empty():
        return prompts
    first = "".join(
        f"\n  {shown(row['prompt'])}: prompts {row['source_train']}, eval_prompts {row['source']}"
        for row in both.head(3).iter_rows(named=True)
    )
    said = (
        f"{both.height} of {eval_prompts.height} eval_prompts are also in prompts (equal but for "
        f"case, punctuation and white space):{first}"
    )
    if not isinstance(spec, Rows) or spec.doubtful == "refuse":
        raise ToprError(
            f"{said}\ntake them out of one of the two, or give prompts.doubtful: drop; generated "
            "problems are kept apart by prompts.split: train and eval_prompts.split: eval"
        )
    if both.height == prompts.height:
        raise ToprError(f"{said}\nnone would be left in prompts (prompts.doubtful: drop)")
    log.warning("%s\nleft out of prompts", said)
    return prompts.join(both, on="prompt_id", how="anti", maintain_order="left")


def for_iteration(
    prompts: pl.DataFrame, per_iteration: int | None, iteration: int, seed: int
) -> pl.DataFrame:
    """The prompts of iteration k = 1, 2, ...: all, or the k-th window of `per_iteration`.

    The prompts are put in an order that depends on `seed` and their ids only, not on the order of
    the rows, and dealt out in that order. Where a window reaches the end it goes on from the start,
    in the same order: every prompt is used once before any is used twice, and none twice in one
    iteration. With 5 prompts and 2 per iteration: 1 2, 3 4, 5 1, 2 3, ...
    """
    if iteration < 1:
        raise ValueError(f"iteration {iteration}: iterations that sample count from 1")
    ids = prompts["prompt_id"].to_list()
    drawn = [hashlib.sha256(f"{seed} {name}".encode()).hexdigest() for name in ids]
    order = sorted(range(len(ids)), key=drawn.__getitem__)
    if per_iteration is not None and per_iteration < len(order):
        start = (iteration - 1) * per_iteration
        order = [order[i % len(order)] for i in range(start, start + per_iteration)]
    return prompts[order]


def _generated(spec: WordProblems, seed: int, key: str) -> Iterator[Row]:
    english = spec.style == "english"
    for problem in problems(spec.count, spec.split or _split(key), spec.steps, seed, key):
        prompt = problem.english_prompt if english else problem.prompt
        solution = problem.english_solution if english else problem.solution
        yield {
            "prompt_id": prompt_id(prompt),
            "prompt": prompt,
            "gold": problem.gold,
            "source": "word_problems",
            "split": problem.split,
            "meta": as_json({"steps": len(problem.steps), "solution": solution}),
        }


def records(spec: FilePrompts | HubPrompts, root: Path, key: str) -> Iterator[tuple[str, Record]]:
    """The rows that a section names, each with its source, as `read_records` and `read_hub` do."""
    if isinstance(spec, FilePrompts):
        return read_records(spec.path, root, f"{key}.path")
    return read_hub(spec, root, key)


def _collected(
    spec: FilePrompts | HubPrompts, root: Path, key: str, others: Collection[str]
) -> Iterator[Row]:
    columns = spec.columns
    # A GSM8K gold is a whole solution: its text is kept.
    said = {columns.prompt, *others} | ({columns.gold} if columns.gold_format == "plain" else set())
    for source, record in records(spec, root, key):
        prompt = prompt_text(record, columns, source, key)
        yield {
            "prompt_id": prompt_id(prompt),
            "prompt": prompt,
            "gold": _gold(record, columns, source, key),
            "source": source,
            "split": _split(key),
            "meta": as_json({k: v for k, v in record.items() if k not in said}),
        }


def _split(key: str) -> Literal["train", "eval"]:
    return "eval" if key == "eval_prompts" else "train"


def prompt_text(record: Record, columns: Columns, source: str, key: str) -> str:
    """The prompt of a row. ToprError for none, with its source and the YAML key."""
    value = column(record, columns.prompt, source, f"{key}.columns.prompt")
    if not isinstance(value, str) or not value.strip():
        raise ToprError(
            f"{source}: the prompt is {shown(value)} ({key}.columns.prompt: {columns.prompt}); "
            f"give a text that is not empty"
        )
    return value


def _gold(record: Record, columns: Columns, source: str, key: str) -> str | None:
    if columns.gold is None:
        return None
    value = column(record, columns.gold, source, f"{key}.columns.gold")
    gold = gold_text(value)
    if gold is None:
        raise ToprError(
            f"{source}: the gold is {shown(value)} ({key}.columns.gold: {columns.gold}); "
            f"give a number or a text that is not empty"
        )
    if columns.gold_format == "plain":
        return gold
    answer = after_hashes(gold)
    if answer is None:
        raise ToprError(
            f"{source}: the gold {shown(value)} has nothing after '####' "
            f"({key}.columns.gold_format: gsm8k); give '#### 18' or gold_format: plain"
        )
    return answer


def column(record: Record, name: str, source: str, key: str) -> Any:
    """The value of a column. ToprError where the row has none of that name."""
    if name not in record:
        raise ToprError(
            f"{source}: no column {name!r} ({key}); the row has {', '.join(record) or 'none'}"
            f"{did_you_mean(name, record)}"
        )
    return record[name]


def _distinct(rows: Iterable[Row], spec: Rows, key: str) -> list[Row]:
    """The first row of each prompt; prompts with two golds are refused, or dropped altogether."""
    kept: dict[str, Row] = {}
    repeated, conflicting = 0, set()
    for row in rows:
        first = kept.setdefault(row["prompt_id"], row)
        if first is row:
            continue
        repeated += 1
        if first["gold"] == row["gold"]:
            continue
        if spec.doubtful == "refuse":
            raise ToprError(
                f"{first['source']} and {row['source']} are one prompt with two golds, "
                f"{first['gold']!r} and {row['gold']!r} ({key}.columns.gold): "
                f"{shown(row['prompt'])}; correct one, take one out, or give {key}.doubtful: drop"
            )
        conflicting.add(row["prompt_id"])
    if repeated:
        log.info("%s: %d repeated prompts left out, %d kept", key, repeated, len(kept))
    if conflicting:
        log.warning("%s: %d prompts with several golds left out", key, len(conflicting))
    return [row for name, row in kept.items() if name not in conflicting]
