"""A mix cut into what is computed at once: samples, steps of the optimiser, forwards.

    mix -> samples -> steps (what the optimiser sees) -> forwards (what fits into memory)

A forward is a list of groups, a group a prompt with some of its samples; it costs P + sum(R) tokens
per group, since a prompt's prefix is computed once. All of it is deterministic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np
import polars as pl
import torch

from topr_pipeline.checkpoints.logprobs import CompletionLogprobs
from topr_pipeline.checkpoints.objective import ObjectiveInput


@dataclass(frozen=True, eq=False, slots=True)
class Sample:
    """A row of the mix. `logprobs_R` is log mu per token, NaN where it is not known."""

    prompt_id: str
    sample_index: int
    iteration: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs_R: np.ndarray
    advantage: float
    reward: float
    unit: int

    @property
    def tokens(self) -> int:
        """P + R, what it costs alone."""
        return len(self.prompt_ids) + len(self.token_ids)


@dataclass(frozen=True)
class Group:
    """A prompt and samples of it that are computed together."""

    prompt_ids: tuple[int, ...]
    samples: tuple[Sample, ...]

    @property
    def tokens(self) -> int:
        """P + sum of R, what the group costs."""
        return len(self.prompt_ids) + sum(len(s.token_ids) for s in self.samples)


Forward = list[Group]


def samples_of(mix: pl.DataFrame) -> list[Sample]:
    """The rows of a mix as an objective prepared it (`Objective.prepare`).

    Without a column `unit`, each sample is its own. A log mu of any other length than the
    completion's counts as not known. Equal prompts, and equal numbers, are one object each: 8 bytes
    a token in place of 36, and the prompt's once.
    """
    if "unit" not in mix.columns:
        mix = mix.with_row_index("unit")
    numbers: dict[int, int] = {}
    prompts: dict[tuple[int, ...], tuple[int, ...]] = {}

    def shared(ids: list[int]) -> tuple[int, ...]:
        return tuple([numbers.setdefault(i, i) for i in ids])

    return [
        Sample(
            prompt_id=row["prompt_id"],
            sample_index=row["sample_index"],
            iteration=row["iteration"],
            prompt_ids=prompts.setdefault(ids := shared(row["prompt_token_ids"]), ids),
            token_ids=shared(row["token_ids"]),
            logprobs_R=_known(row["logprobs"], len(row["token_ids"])),
            advantage=row["advantage"],
            reward=row["reward"],
            unit=row["unit"],
        )
        for row in mix.iter_rows(named=True)
    ]


def missing_logprobs(samples: Sequence[Sample]) -> tuple[int, int]:
    """Completion tokens whose log mu is not a finite number, and all completion tokens."""
    missing = sum(int((~np.isfinite(s.logprobs_R)).sum()) for s in samples)
    return missing, sum(len(s.token_ids) for s in samples)


def steps(
    samples: Sequence[Sample],
    batch_size: int,
    epochs: int,
    seed: int,
    shuffle: Literal["prompts", "samples"] = "prompts",
) -> list[list[Sample]]:
    """Batches of the optimiser: `batch_size` samples each (the last may have fewer).

    `prompts`: prompts are shuffled over the whole mix, anew in each epoch, and the samples of a
    prompt among themselves; they stay next to each other, so that they mostly share a step and
    their prefix is computed once. `samples`: all samples are shuffled alike. Epochs follow one
    another without a cut. A unit is not cut either: a batch may exceed `batch_size` by its rest.
    """
    nested: dict[tuple[int, ...], dict[int, list[Sample]]] = {}
    for sample in samples:
        nested.setdefault(sample.prompt_ids, {}).setdefault(sample.unit, []).append(sample)
    prompts = [list(units.values()) for units in nested.values()]
    if shuffle == "samples":
        prompts = [[unit for units in prompts for unit in units]]
    generator = np.random.default_rng(seed)
    batches: list[list[Sample]] = [[]]
    for _ in range(epochs):
        for p in generator.permutation(len(prompts)):
            for u in generator.permutation(len(prompts[p])):
                if len(batches[-1]) >= batch_size:
                    batches.append([])
                batches[-1] += prompts[p][u]
    return batches


def forwards(
    batch: Sequence[Sample], token_budget: int, processes: int = 1, shares_prefix: bool = True
) -> list[Forward]:
    """A batch cut into forwards of at most `token_budget` computed tokens (one unit at least).

    A prompt's samples are cut into as few groups as the budget allows, of about equal cost; groups
    fill the forwards, largest first, each into the emptiest one that has room. Units are not cut.
    For several processes the forwards are made smaller until each has equally many, as far as the
    batch has units for that. Without `shares_prefix` each sample is a row of its own, padded to the
    forward's longest: it costs their number times that, and rows of like length go together.
    """
    prompts = _units_by_prompt(batch)
    filled, cost = (_forwards, _tokens) if shares_prefix else (_padded_forwards, _padded_tokens)
    cut = filled(prompts, token_budget)
    wanted = -(-len(cut) // processes) * processes
    if len(cut) < wanted:
        share = 1.1 * sum(map(cost, cut)) / wanted
        finer = filled(prompts, min(token_budget, int(share)))
        cut = finer if len(finer) <= wanted else cut
    while len(cut) < wanted and (whole := [f for f in cut if _units(f) > 1]):
        largest = max(whole, key=cost)
        at = next(i for i, f in enumerate(cut) if f is largest)
        cut[at : at + 1] = _halved(largest)
    return cut


def objective_input(groups: Sequence[Group], logprobs: CompletionLogprobs) -> ObjectiveInput:
    """What an objective reads: `logprobs` in the groups' order of samples, and their facts."""
    samples = [s for g in groups for s in g.samples]
    logprobs_BT, mask_BT = logprobs.logprobs_BT, logprobs.mask_BT
    behaviour_BT = torch.full(logprobs_BT.shape, torch.nan)
    for b, sample in enumerate(samples):
        behaviour_BT[b, : len(sample.token_ids)] = torch.from_numpy(sample.logprobs_R)
    behaviour_BT = behaviour_BT.to(logprobs_BT.device)
    own_BT = logprobs_BT.detach()

    def per_sample(values: list[float] | list[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=logprobs_BT.device)

    return ObjectiveInput(
        logprobs_BT,
        torch.where(behaviour_BT.isfinite(), behaviour_BT, own_BT),
        mask_BT,
        per_sample([s.advantage for s in samples], torch.float32),
        per_sample([s.reward for s in samples], torch.float32),
        per_sample([s.unit for s in samples], torch.long),
    )


def _known(logprobs: Sequence[float | None] | None, length: int) -> np.ndarray:
    if logprobs is None or len(logprobs) != length:
        return np.full(length, np.nan, np.float32)
    return np.array(logprobs, np.float32)  # None becomes NaN


Units = list[tuple[Sample, ...]]


def _units_by_prompt(batch: Sequence[Sample]) -> list[tuple[tuple[int, ...], Units]]:
    in_order = sorted(batch, key=lambda s: (s.prompt_ids, s.unit))
    return [
        (prompt_ids, [tuple(unit) for _, unit in groupby(samples, key=lambda s: s.unit)])
        for prompt_ids, samples in groupby(in_order, key=lambda s: s.prompt_ids)
    ]


def _forwards(prompts: list[tuple[tuple[int, ...], Units]], token_budget: int) -> list[Forward]:
    groups = [g for prompt_ids, units in prompts for g in _groups(prompt_ids, units, token_budget)]
    filled: list[Forward] = []
    for group in sorted(groups, key=lambda g: -g.tokens):
        roomy = [f for f in filled if _tokens(f) + group.tokens <= token_budget]
        if roomy:
            min(roomy, key=_tokens).append(group)
        else:
            filled.append([group])
    return filled


def _padded_forwards(
    prompts: list[tuple[tuple[int, ...], Units]], token_budget: int
) -> list[Forward]:
    """A unit is a group here; the longest first, so that little is padded."""
    groups = [Group(prompt_ids, unit) for prompt_ids, units in prompts for unit in units]
    filled: list[Forward] = []
    for group in sorted(groups, key=lambda g: -max(s.tokens for s in g.samples)):
        if filled and _padded_tokens([*filled[-1], group]) <= token_budget:
            filled[-1].append(group)
        else:
            filled.append([group])
    return filled


def _groups(prompt_ids: tuple[int, ...], units: Units, token_budget: int) -> list[Group]:
    """As few groups as the budget allows, of about equal cost."""
    room = max(token_budget - len(prompt_ids), 1)
    count = -(-sum(map(_length, units)) // room)
    while True:
        groups = _dealt(prompt_ids, units, count)
        fits = all(sum(len(s.token_ids) for s in g.samples) <= room for g in groups)
        if fits or len(groups) == len(units):
            return groups
        count += 1


def _dealt(prompt_ids: tuple[int, ...], units: Units, count: int) -> list[Group]:
    """At most `count` groups, the longest unit first, each into the emptiest."""
    bins: list[list[Sample]] = [[] for _ in range(min(count, len(units)))]
    filled = [0] * len(bins)
    for unit in sorted(units, key=_length, reverse=True):
        emptiest = filled.index(min(filled))
        bins[emptiest] += unit
        filled[emptiest] += _length(unit)
    return [Group(prompt_ids, tuple(samples)) for samples in bins]


def _halved(forward: Forward) -> list[Forward]:
    """Two forwards of a forward of two units or more."""
    if len(forward) == 1:
        [(prompt_ids, units)] = _units_by_prompt(forward[0].samples)
        return [[group] for group in _dealt(prompt_ids, units, 2)]
    halves: list[Forward] = [[], []]
    for group in sorted(forward, key=lambda g: -g.tokens):
        min(halves, key=_tokens).append(group)
    return halves


def _length(unit: tuple[Sample, ...]) -> int:
    return sum(len(s.token_ids) for s in unit)


def _units(forward: Forward) -> int:
    return len({s.unit for group in forward for s in group.samples})


def _padded_tokens(forward: Forward) -> int:
    samples = [s for group in forward for s in group.samples]
    return len(samples) * max(s.tokens for s in samples)


def _tokens(forward: Forward) -> int:
    return sum(group.tokens for group in forward)
