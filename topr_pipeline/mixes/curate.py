"""Curation: which rewarded solutions are trained on, and with which advantage."""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psutil

from topr_pipeline.checks import Check
from topr_pipeline.curation import Length, Mix
from topr_pipeline.errors import ToprError
from topr_pipeline.mixes.baseline import baseline_for_rewards, effective_share_of_rewards
from topr_pipeline.mixes.draw import seed_of
from topr_pipeline.mixes.pool import Pool, Tally, counted
from topr_pipeline.mixes.replay import WEIGHT, newest_rates, quotas, unsolved
from topr_pipeline.mixes.rows import rewarded
from topr_pipeline.mixes.select import BINS, Selection, binned, flow_of, selected
from topr_pipeline.mixes.write import write_mix
from topr_pipeline.tables import MIX, disk_errors, unwritable


@dataclass(frozen=True)
class Source:
    """An iteration's `solutions` and `rewards` tables; `further` are the two of its top-up."""

    iteration: int
    solutions: Path
    rewards: Path
    further: tuple[Path, Path] | None = None


@dataclass(frozen=True)
class Curated:
    """How a mix came about.

    `positive_share` is the share of rows with R > 0 (p), `effective_positive_share` their part of
    the mass of advantages under the baseline (p~). `waterfall` says what was left after each step
    (step, rows, prompts, positives), last the old rows that were added. `composition` has a row per
    iteration: samples, what the steps left, rows in the mix and their outcomes. `solve_rates`
    counts this iteration's prompts by solve rate (rounded to 0.001), in all samples and in the mix;
    no prompt has more than `samples_per_prompt` samples.
    """

    rows: int
    baseline: float
    positive_share: float
    effective_positive_share: float
    waterfall: Sequence[Mapping[str, Any]]
    composition: Sequence[Mapping[str, Any]]
    solve_rates: Sequence[Mapping[str, float]]
    samples_per_prompt: int


def curate(sources: Sequence[Source], mix: Mix, out: Path, seed: int = 0) -> Curated:
    """Write to `out` the `mix` table of the newest of `sources` (iterations ascending).

    Null rewards are dropped, `mix.steps` applied in order to each iteration for itself, old rows
    drawn by `mix.replay`, and the baseline (0 when none is given) subtracted. The table is sorted
    by (iteration, prompt_id, sample_index) and does not depend on the order of the rows that come
    in, on threads, or on `mix.memory_gib`, which bounds the memory; more than that lies in files
    beside `out` meanwhile. A mix with one sign of advantages is only refused where an effective
    share is to be reached: see `checks`.

    Raises ToprError when rewards and solutions do not fit, when no fresh row is left, when all
    advantages are 0, when no baseline gives `mix.effective_positive_share`, when a step cannot do
    what it says, and for a full disk.
    """
    memory = _memory(mix)
    name = {"prefix": f"{out.name}.", "suffix": ".tmp"}  # what clears up after a kill knows it
    with disk_errors(out), tempfile.TemporaryDirectory(dir=out.parent, **name) as folder:
        try:
            return _curated(sources, mix, out, seed, Path(folder), memory)
        except pl.exceptions.ComputeError as error:
            if "No space left" in str(error):  # Polars hands it on in its own words
                raise unwritable("the disk is full", out) from error
            raise


def _curated(
    sources: Sequence[Source], mix: Mix, out: Path, seed: int, folder: Path, memory: int
) -> Curated:
    found = []
    for source in sources:
        at, files = source.iteration, (source.solutions, source.rewards)
        tables = rewarded(at, *files, folder / f"tables {at}", memory, source.further)
        found.append(selected(tables, mix, seed, folder, memory // len(sources)))
    fresh = found[-1].pool.tally()
    if not fresh.rows:
        raise _nothing_left(found[-1])
    pools = [*_old_rows(found[:-1], found[-1], mix, seed), found[-1].pool]
    by_reward: dict[float, float] = counted((frame for pool in pools for frame in pool), "reward")
    baseline = _baseline(by_reward, mix)
    chosen = [(s.rows, pool) for s, pool in zip(found, pools, strict=True)]
    write_mix(chosen, baseline, _cap(mix), out, folder, memory)
    rows = int(sum(by_reward.values()))
    curated = Curated(
        rows=rows,
        baseline=baseline,
        positive_share=sum(n for reward, n in by_reward.items() if reward > 0) / rows,
        effective_positive_share=effective_share_of_rewards(by_reward, baseline),
        waterfall=_waterfall(found, pools),
        composition=[_composition(s, pool) for s, pool in zip(found, pools, strict=True)],
        solve_rates=_solve_rates(found[-1], pools[-1]),
        samples_per_prompt=found[-1].samples,
    )
    _confirm(out, curated)
    return curated


def checks(table: pl.LazyFrame, mix: Mix) -> list[Check]:
    """The blocking checks of a `mix` table: enough rows with an advantage above 0, and below 0?

    Advantages are counted, not rewards: they are what is trained on (`baseline: -1` leaves none of
    the negatives, and needs `min_negatives: 0`).
    """
    advantage = pl.col("advantage")
    signs = table.select(above=(advantage > 0).sum(), below=(advantage < 0).sum())
    above, below = signs.collect(engine="streaming").row(0)
    return [
        _enough("min_positives", above, mix.min_positives, "above"),
        _enough("min_negatives", below, mix.min_negatives, "below"),
    ]


def _enough(key: str, count: int, least: int, side: str) -> Check:
    message = f"{count} rows of the mix have an advantage {side} 0; mix.{key} wants {least}"
    if count < least:
        message += (
            f" or more: change mix.steps, the baseline or rewards.values, or set mix.{key}: "
            f"{count} to train on such a mix"
        )
    return Check(key, count >= least, message, {"count": count, "least": least})


def _memory(mix: Mix) -> int:
    """Bytes that making the mix may take, about."""
    if mix.memory_gib is not None:
        return int(mix.memory_gib * 2**30)
    total = psutil.virtual_memory().total
    with suppress(OSError, ValueError):  # a container may have less
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total // 2


def _old_rows(older: Sequence[Selection], newest: Selection, mix: Mix, seed: int) -> list[Pool]:
    """What of each older iteration is in the mix."""
    if mix.replay is None:
        return []
    now, weight = newest.rows.iteration, None if mix.replay.priority == "none" else WEIGHT
    pools, rates = {s.rows.iteration: s.pool for s in older}, newest.rates
    if mix.replay.priority == "unsolved":
        for selection in reversed(older):
            at = selection.rows.iteration
            pools[at] = unsolved(pools[at], rates)
            rates = newest_rates(rates, selection.rates)
    available = {now - at: pool.tally().rows for at, pool in pools.items()}
    wanted = quotas(newest.pool.tally().rows, available, mix.replay)
    everything = pl.col("reward").is_not_null()
    return [
        pool.drawn(wanted[now - at], seed_of(seed, now, at), everything, weight)
        for at, pool in pools.items()
    ]


def _baseline(by_reward: Mapping[float, float], mix: Mix) -> float:
    if mix.effective_positive_share is None:
        return mix.baseline or 0.0
    return baseline_for_rewards(by_reward, mix.effective_positive_share)


def _cap(mix: Mix) -> int | None:
    """After how many tokens completions are cut."""
    caps = [s.max_tokens for s in mix.steps if isinstance(s, Length) and s.over == "cap"]
    return min((c for c in caps if c is not None), default=None)


def _waterfall(found: Sequence[Selection], pools: Sequence[Pool]) -> list[dict[str, Any]]:
    rows = [{"step": label, **_said(tally)} for label, tally in found[-1].waterfall]
    for selection, pool in zip(found[:-1], pools, strict=False):
        label = f"and of iteration {selection.rows.iteration}"
        rows.append({"step": label, **_said(pool.tally())})
    return rows


def _said(found: Tally) -> dict[str, int]:
    return {"rows": found.rows, "prompts": found.prompts, "positives": found.positives}


def _composition(selection: Selection, pool: Pool) -> dict[str, Any]:
    total = pool.tally()
    return {
        "iteration": selection.rows.iteration,
        "samples": selection.waterfall[0][1].rows,
        "after_steps": selection.waterfall[-1][1].rows,
        **_said(total),
        **counted(pool, "outcome"),
    }


def _solve_rates(selection: Selection, pool: Pool) -> list[dict[str, float]]:
    """Prompts by solve rate, and those of the mix by the share of their rows that are correct."""
    right = (pl.col("outcome") == "correct").mean()
    mixed_B = np.zeros_like(selection.solve_rates)
    for frame in pool:
        mixed_B += binned(frame.group_by("prompt").agg(right)["outcome"])
    before_B = selection.solve_rates
    return [
        {"solve_rate": bin / BINS, "all_samples": int(before_B[bin]), "mix": int(mixed_B[bin])}
        for bin in np.flatnonzero(before_B + mixed_B).tolist()
    ]


def _confirm(out: Path, curated: Curated) -> None:
    """The shares that are reported are those of the rows that were written."""
    advantage = pl.col("advantage")
    above = advantage.filter(advantage > 0).sum()
    shares = MIX.scan(out).select(rows=pl.len(), share=above / advantage.abs().sum())
    rows, share = shares.collect(engine="streaming").row(0)
    if rows != curated.rows or abs(share - curated.effective_positive_share) > 1e-9:
        raise ToprError(
            f"{out}: {rows} rows with an effective share of positives of {share}, where "
            f"{curated.rows} and {curated.effective_positive_share} were chosen; was the file "
            "touched? Materialise the mix again"
        )


def _nothing_left(selection: Selection) -> ToprError:
    flow = " -> ".join(flow_of(selection.waterfall))
    return ToprError(
        f"the mix of iteration {selection.rows.iteration} has no rows ({flow}); rewards need "
        "values other than null (rewards.values; unverifiable solutions have none) and mix.steps "
        "must keep some"
    )
