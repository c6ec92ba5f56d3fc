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


@dataclass(frozen=True, eq=False)
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
    completion's counts as not known.
    """
    units = mix["unit"].to_list() if "unit" in mix.columns else range(mix.height)
    columns = [
        "prompt_id",
        "sample_index",
        "iteration",
        "prompt_token_ids",
        "token_ids",
        "logprobs",
        "advantage",
        "reward",
    ]
    return [
        Sample(
            id_,
            index,
            iteration,
            tuple(prompt),
            tuple(tokens),
            _known(mu, len(tokens)),
            *rest,
            unit,
        )
        for (id_, index, iteration, prompt, tokens, mu, *rest), unit in zip(
            mix.select(columns).iter_rows(), units, strict=True
        )
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


def forwards(batch: Sequence[Sample], token_budget: int, processes: int = 1) -> list[Forward]:
    """A batch cut into forwards of at most `token_budget` computed tokens (one unit at least).

    A prompt's samples are cut into as few groups as the budget allows, of about equal cost; groups
    fill the forwards, largest first, each into the emptiest one that has room. Units are not cut.
    For several processes the forwards are made smaller until each has equally many, where the
    batch has enough units for that.
    """
    units = _units_by_prompt(batch)
    cut = _forwards(units, token_budget)
    wanted = -(-len(cut) // processes) * processes
    share = sum(map(_tokens, cut)) / wanted
    for slack in (1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.75, 2.0):
        if len(cut) == wanted:
            break
        finer = _forwards(units, min(token_budget, int(share * slack)))
        if len(cut) < len(finer) <= wanted:
            cut = finer
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


def _groups(prompt_ids: tuple[int, ...], units: Units, token_budget: int) -> list[Group]:
    """As few groups as the budget allows, filled longest unit first, each into the emptiest."""
    room = max(token_budget - len(prompt_ids), 1)
    sized = sorted(((sum(len(s.token_ids) for s in u), u) for u in units), key=lambda x: -x[0])
    count = max(1, -(-sum(size for size, _ in sized) // room))
    while True:
        bins: list[list[Sample]] = [[] for _ in range(min(count, len(sized)))]
        filled = [0] * len(bins)
        for size, unit in sized:
            emptiest = filled.index(min(filled))
            bins[emptiest] += unit
            filled[emptiest] += size
        if max(filled) <= room or len(bins) == len(sized):
            return [Group(prompt_ids, tuple(samples)) for samples in bins]
        count += 1


def _tokens(forward: Forward) -> int:
    return sum(group.tokens for group in forward)
