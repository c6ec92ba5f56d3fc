"""From one iteration's rewarded solutions to the rows that `mix.steps` leave of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from topr_pipeline.curation import Balance, Limit, Mix, MixStep, Sql
from topr_pipeline.errors import ToprError
from topr_pipeline.mixes.draw import seed_of
from topr_pipeline.mixes.pairing import KEY
from topr_pipeline.mixes.pool import POSITIVE, Pool, Tally, tally
from topr_pipeline.mixes.replay import RATES, WEIGHT, weights
from topr_pipeline.mixes.rows import Rewarded
from topr_pipeline.mixes.sql import chosen, view_of
from topr_pipeline.mixes.strategies import STRATEGIES, reads

BINS = 1000
"""Solve rates are counted in steps of 1/1000."""

_ALWAYS = {"at", "prompt", "outcome", "reward"}


@dataclass(frozen=True)
class Selection:
    """What the steps left of an iteration.

    `waterfall` is the rows that came in, those with a reward, and what each step left, by label.
    `solve_rates` counts prompts by bin, before any step; no prompt has more than `samples` of them.
    `rates` has the solve rate of each prompt
    by the hash of its id, where the replay asks for it.
    """

    rows: Rewarded
    pool: Pool
    waterfall: Sequence[tuple[str, Tally]]
    solve_rates: np.ndarray
    samples: int
    rates: pl.DataFrame


def selected(rows: Rewarded, mix: Mix, seed: int, folder: Path, memory: int) -> Selection:
    """Drop null rewards and apply `mix.steps` in order to the rows of one iteration.

    Of texts, answers and lengths only what a step reads is loaded. Raises ToprError as `narrow`
    does, for a `balance` of rows of one sign, and for an SQL query that fails or makes up rows.
    """
    first = next((i for i, s in enumerate(mix.steps) if not _per_prompt(s)), len(mix.steps))
    run = _Run(mix, rows.iteration, seed, folder, memory)
    pool = Pool(folder / f"{rows.iteration}", memory // 4)
    for frame in rows.narrow(run.columns(0)):
        pool.add(run.per_prompt(run.opened(frame), range(first)))
    for at in range(first, len(mix.steps)):
        if _per_prompt(mix.steps[at]):
            pool = pool.replaced(lambda frame, at=at: run.per_prompt(frame, [at]))
        else:
            pool = run.over_all(pool, at)
    rates = pl.concat([RATES.to_frame(), *run.rates])
    return Selection(rows, pool, list(run.flow.values()), run.solve_rates, run.samples, rates)


@dataclass
class _Run:
    """The steps of one iteration, counting what each leaves."""

    mix: Mix
    iteration: int
    seed: int
    folder: Path
    memory: int
    flow: dict[int, tuple[str, Tally]] = field(default_factory=dict)
    rates: list[pl.DataFrame] = field(default_factory=list)
    samples: int = 0
    solve_rates: np.ndarray = field(default_factory=lambda: np.zeros(BINS + 1, np.int64))

    def __post_init__(self) -> None:
        for at, label in enumerate(["rewards", "with a reward", *map(_label, self.mix.steps)], -2):
            self.flow[at] = (label, Tally())

    def columns(self, at: int) -> set[str]:
        """What has to be kept for the steps from number `at` on."""
        found = set(_ALWAYS) | ({*KEY} if self.mix.draws else set())
        if self.mix.replay and self.mix.replay.priority != "none":
            found |= {WEIGHT}
        return found.union(*map(reads, self.mix.steps[at:]))

    def count(self, at: int, found: Tally) -> None:
        label, before = self.flow[at]
        self.flow[at] = (label, before + found)

    def opened(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The rows that can be trained on, after a look at all of them."""
        self.count(-2, tally(frame))
        known = frame.filter(pl.col("prompt").diff().fill_null(1) != 0).drop_nulls("solve_rate")
        self.solve_rates += binned(known["solve_rate"])
        most = np.bincount(frame["prompt"].to_numpy(), minlength=1).max()
        self.samples = max(self.samples, int(most))
        replay = self.mix.replay
        if replay and replay.priority == "unsolved":
            self.rates.append(known.select(pl.col("prompt_id").hash().alias("hash"), "solve_rate"))
        frame = frame.drop_nulls("reward")
        self.count(-1, tally(frame))
        return weights(frame, replay) if replay else frame

    def per_prompt(self, frame: pl.DataFrame, steps: Sequence[int]) -> pl.DataFrame:
        """One chunk after some of the steps, with the columns that later ones need."""
        for at in steps:
            step = self.mix.steps[at]
            frame = STRATEGIES[step.strategy](frame.lazy(), step).collect(engine="in-memory")
            self.count(at, tally(frame))
        wanted = self.columns(steps[-1] + 1 if steps else 0)
        return frame.select(c for c in frame.columns if c in wanted)

    def over_all(self, pool: Pool, at: int) -> Pool:
        """What a step that looks at all rows at once leaves."""
        step = self.mix.steps[at]
        seed = seed_of(self.seed, self.iteration, at)
        match step:
            case Limit():
                pool = pool.drawn(step.rows, seed, pl.col("reward").is_not_null())
            case Balance():
                pool = _balanced(pool, step, seed, f"mix.steps.{at}.positive_share")
            case Sql():
                pool = self.asked(pool, step, f"mix.steps.{at}.sql")
        self.count(at, pool.tally())
        wanted = self.columns(at + 1)
        return pool.replaced(lambda f: f.select(c for c in f.columns if c in wanted))

    def asked(self, pool: Pool, step: Sql, key: str) -> Pool:
        columns, iteration = view_of(step.sql), pl.lit(self.iteration, pl.Int32)
        frames = (frame.with_columns(iteration=iteration).select(columns) for frame in pool)
        return pool.numbered(chosen(step.sql, frames, self.folder, self.memory // 4, key))


def binned(rate_P: pl.Series) -> np.ndarray:
    """How many of the solve rates fall into each bin."""
    return np.bincount(np.rint(rate_P.to_numpy() * BINS).astype(int), minlength=BINS + 1)


def _balanced(pool: Pool, step: Balance, seed: int, key: str) -> Pool:
    total = pool.tally()
    positives, negatives = total.positives, total.rows - total.positives
    share = step.positive_share
    if not positives or not negatives:
        raise ToprError(
            f"{key}: {share:g} cannot be reached by dropping rows: {positives} of the "
            f"{total.rows} rows have a reward above 0; rows of both kinds are needed"
        )
    if positives > share * total.rows:
        return pool.drawn(max(round(negatives * share / (1 - share)), 1), seed, POSITIVE)
    return pool.drawn(max(round(positives * (1 - share) / share), 1), seed, ~POSITIVE)


def _per_prompt(step: MixStep) -> bool:
    return step.strategy in STRATEGIES


def _label(step: MixStep) -> str:
    said = step.model_dump(exclude={"strategy"}, exclude_none=True)
    return " ".join([step.strategy, *(f"{key}={_short(value)}" for key, value in said.items())])


def _short(value: object) -> str:
    said = " ".join(str(value).split())
    return said if len(said) <= 60 else f"{said[:57]}..."


def flow_of(waterfall: Sequence[tuple[str, Tally]]) -> Iterator[str]:
    """`rewards: 12`, and so on."""
    return (f"{label}: {found.rows}" for label, found in waterfall)
