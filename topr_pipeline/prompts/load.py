"""Load a prompt set, keep training and evaluation apart, deal prompts out to iterations."""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import polars as pl

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Columns, JsonLines, Prompts, WordProblems
from topr_pipeline.prompts.jsonl import Record, did_you_mean, gold_text, read_records, shown
from topr_pipeline.prompts.text import normalise, prompt_id
from topr_pipeline.prompts.word_problems import problems
from topr_pipeline.tables import PROMPTS

__all__ = ["check_overlap", "for_iteration", "load_prompts", "normalise", "prompt_id"]

Row = dict[str, str]
log = logging.getLogger(__name__)


def load_prompts(spec: Prompts, root: Path, seed: int, key: str) -> pl.DataFrame:
    """The prompts of one YAML section, in the order of the file or of the generator.

    `root` is what a file's path is relative to, `seed` that of the experiment (for generators),
    `key` the section's name, "prompts" or "eval_prompts". Returns a PROMPTS table: `source` is
    "file:row" or "word_problems", `split` that of the generator or of the section, `meta` holds all
    other columns. Raises ToprError with file, row and key for whatever cannot be used.
    """
    if isinstance(spec, WordProblems):
        rows = list(_generated(spec, seed, key))
    else:
        rows = _distinct(_from_file(spec, root, key), key)[: spec.limit]
        if not rows:
            raise ToprError(f"{spec.path!r} holds no prompt ({key}.path); give at least one")
    return PROMPTS.conform(pl.DataFrame(rows, schema=PROMPTS.schema))


def check_overlap(prompts: pl.DataFrame, eval_prompts: pl.DataFrame) -> None:
    """Raise ToprError when a prompt, by its normalised text, is trained and evaluated on."""
    both = eval_prompts.join(prompts, on="prompt_id", suffix="_train", maintain_order="left")
    if both.is_empty():
        return
    first = "".join(
        f"\n  {shown(row['prompt'])}: prompts {row['source_train']}, eval_prompts {row['source']}"
        for row in both.head(3).iter_rows(named=True)
    )
    raise ToprError(
        f"{both.height} of {eval_prompts.height} eval_prompts are also in prompts (equal but for "
        f"case, punctuation and white space):{first}\ntake them out of one of the two; generated "
        f"problems are kept apart by prompts.split: train and eval_prompts.split: eval"
    )


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
    for problem in problems(spec.count, spec.split or _split(key), spec.steps, seed, key):
        yield {
            "prompt_id": prompt_id(problem.prompt),
            "prompt": problem.prompt,
            "gold": problem.gold,
            "source": "word_problems",
            "split": problem.split,
            "meta": json.dumps({"steps": len(problem.steps), "solution": problem.solution}),
        }


def _from_file(spec: JsonLines, root: Path, key: str) -> Iterator[Row]:
    columns = spec.columns
    for line, record in read_records(spec.path, root, key):
        source = f"{spec.path}:{line}"
        prompt = _prompt(record, columns, source, key)
        yield {
            "prompt_id": prompt_id(prompt),
            "prompt": prompt,
            "gold": _gold(record, columns, source, key),
            "source": source,
            "split": _split(key),
            "meta": json.dumps(
                {k: v for k, v in record.items() if k not in (columns.prompt, columns.gold)},
                ensure_ascii=False,
            ),
        }


def _split(key: str) -> Literal["train", "eval"]:
    return "eval" if key == "eval_prompts" else "train"


def _prompt(record: Record, columns: Columns, source: str, key: str) -> str:
    value = _column(record, columns.prompt, source, f"{key}.columns.prompt")
    if not isinstance(value, str) or not value.strip():
        raise ToprError(
            f"{source}: the prompt is {shown(value)} ({key}.columns.prompt: {columns.prompt}); "
            f"give a text that is not empty"
        )
    return value


def _gold(record: Record, columns: Columns, source: str, key: str) -> str:
    value = _column(record, columns.gold, source, f"{key}.columns.gold")
    gold = gold_text(value)
    if gold is None:
        raise ToprError(
            f"{source}: the gold is {shown(value)} ({key}.columns.gold: {columns.gold}); "
            f"give a number or a text that is not empty"
        )
    return gold


def _column(record: Record, name: str, source: str, key: str) -> Any:
    if name not in record:
        raise ToprError(
            f"{source}: no column {name!r} ({key}); the row has {', '.join(record) or 'none'}"
            f"{did_you_mean(name, record)}"
        )
    return record[name]


def _distinct(rows: Iterable[Row], key: str) -> list[Row]:
    """The first row of each prompt; two golds for one prompt are an error."""
    kept: dict[str, Row] = {}
    repeated = 0
    for row in rows:
        first = kept.setdefault(row["prompt_id"], row)
        if first is row:
            continue
        repeated += 1
        if first["gold"] != row["gold"]:
            raise ToprError(
                f"{first['source']} and {row['source']} are one prompt with two golds, "
                f"{first['gold']!r} and {row['gold']!r} ({key}.columns.gold): "
                f"{shown(row['prompt'])}; correct one or take one out"
            )
    if repeated:
        log.info("%s: %d repeated prompts left out, %d kept", key, repeated, len(kept))
    return list(kept.values())
