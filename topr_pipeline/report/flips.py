"""Prompts whose answer became right or wrong from one iteration to the next."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import polars as pl

from topr_pipeline.evals.voting import majority
from topr_pipeline.report.run import Run

SHOWN = 3
"""Examples of each kind."""
LONGEST = 2000
"""Characters of a text that are shown."""
KINDS = {
    "gained": "Wrong before, right now",
    "lost": "Right before, wrong now",
    "back": "There and back",
}


_RIGHT = pl.DataFrame(
    schema={"prompt_id": pl.String, "right": pl.Boolean, "rate": pl.Float64, "iteration": pl.Int32}
)


@dataclass(frozen=True)
class Completion:
    """A sample of the prompt at one iteration, of the kind that the vote is: right or wrong.

    `rate` is the share of the prompt's verifiable samples that are correct.
    """

    iteration: int
    right: bool
    rate: float
    answer: str | None
    text: str


@dataclass(frozen=True)
class Flipped:
    """A prompt whose vote changed, with one completion before and after each change."""

    kind: str
    prompt: str
    gold: str
    completions: Sequence[Completion]


def right_by_iteration(run: Run) -> pl.DataFrame:
    """prompt_id, iteration, right (is the majority of all its samples right?) and rate."""
    parts = []
    for k, answers in sorted(run.answers.items()):
        rows = (
            answers.select("prompt_id", "sample_index", "answer", "outcome")
            .filter(pl.col("outcome") != "unverifiable")
            .sort("prompt_id", "sample_index")
            .collect()
        )
        rates = rows.group_by("prompt_id").agg(rate=(pl.col("outcome") == "correct").mean())
        votes = majority(rows, None)
        parts.append(votes.join(rates, on="prompt_id").with_columns(iteration=pl.lit(k)))
    return pl.concat([_RIGHT.clear(), *(part.cast(_RIGHT.schema) for part in parts)])


def counts(right: pl.DataFrame) -> pl.DataFrame:
    """Per step: iteration (of after), gained, lost, kept_right, kept_wrong: prompts."""
    rows: list[dict[str, Any]] = []
    for before, after in pairwise(sorted(right["iteration"].unique())):
        was, now = pl.col("right"), pl.col("right|after")
        rows.append(
            _step(right, before, after)
            .select(
                iteration=pl.lit(after),
                gained=(~was & now).sum(),
                lost=(was & ~now).sum(),
                kept_right=(was & now).sum(),
                kept_wrong=(~was & ~now).sum(),
            )
            .row(0, named=True)
        )
    names = ("iteration", "gained", "lost", "kept_right", "kept_wrong")
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Int64))


def examples(run: Run, right: pl.DataFrame) -> list[Flipped]:
    """Up to SHOWN prompts of each of KINDS: those whose solve rate changed most.

    `gained` and `lost` are of the last step; `back` are prompts that changed twice or more.
    """
    iterations = sorted(right["iteration"].unique())
    if len(iterations) < 2:
        return []
    step = _step(right, *iterations[-2:]).with_columns(gain=pl.col("rate|after") - pl.col("rate"))
    gained = step.filter(~pl.col("right"), pl.col("right|after")).sort("gain", descending=True)
    lost = step.filter(pl.col("right"), ~pl.col("right|after")).sort("gain")
    chosen = [("gained", row, iterations[-2:]) for row in gained["prompt_id"].head(SHOWN)]
    chosen += [("lost", row, iterations[-2:]) for row in lost["prompt_id"].head(SHOWN)]
    chosen += [("back", prompt, at) for prompt, at in _there_and_back(right)[:SHOWN]]
    return _with_texts(run, right, chosen)


def _step(right: pl.DataFrame, before: int, after: int) -> pl.DataFrame:
    was, now = (right.filter(iteration=k).drop("iteration") for k in (before, after))
    return was.join(now, on="prompt_id", suffix="|after").sort("prompt_id")


def _there_and_back(right: pl.DataFrame) -> list[tuple[str, list[int]]]:
    """Prompts that changed twice or more, most often changed first, with the iterations at which
    they had changed, the one before the first change in front."""
    found = []
    for (prompt,), rows in right.sort("prompt_id", "iteration").group_by(
        "prompt_id", maintain_order=True
    ):
        known = list(zip(rows["iteration"], rows["right"], strict=True))
        changes = [(a[0], b[0]) for a, b in pairwise(known) if a[1] != b[1]]
        if len(changes) > 1:
            found.append((str(prompt), [changes[0][0], *(after for _, after in changes)]))
    return sorted(found, key=lambda each: -len(each[1]))


def _with_texts(
    run: Run, right: pl.DataFrame, chosen: Sequence[tuple[str, str, list[int]]]
) -> list[Flipped]:
    wanted = [prompt for _, prompt, _ in chosen]
    asked = {row["prompt_id"]: row for row in run.eval_prompts.iter_rows(named=True)}
    texts = {
        k: answers.filter(pl.col("prompt_id").is_in(wanted)).sort("sample_index").collect()
        for k, answers in run.answers.items()
    }
    votes = {(p, k): (is_right, rate) for p, is_right, rate, k in right.iter_rows()}
    return [
        Flipped(
            kind,
            asked[prompt]["prompt"] if prompt in asked else prompt,
            asked[prompt]["gold"] if prompt in asked else "",
            [_completion(texts[k].filter(prompt_id=prompt), k, *votes[prompt, k]) for k in at],
        )
        for kind, prompt, at in chosen
    ]


def _completion(samples: pl.DataFrame, k: int, right: bool, rate: float) -> Completion:
    """The first sample that is as the vote is."""
    same = samples.filter((pl.col("outcome") == "correct") == right)
    row = (same if same.height else samples).row(0, named=True)
    text = row["text"] if len(row["text"]) <= LONGEST else f"{row['text'][:LONGEST]} ..."
    return Completion(k, right, rate, row["answer"], text)
