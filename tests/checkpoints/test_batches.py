import math
from collections import Counter
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
import torch

from topr_pipeline.checkpoints.batches import (
    Group,
    Sample,
    forwards,
    missing_logprobs,
    objective_input,
    samples_of,
    steps,
)
from topr_pipeline.checkpoints.logprobs import CompletionLogprobs


def sample(prompt: int, index: int, prompt_tokens: int, tokens: int, unit: int | None = None):
    return Sample(
        prompt_id=f"p{prompt}",
        sample_index=index,
        iteration=1,
        prompt_ids=(prompt,) * prompt_tokens,
        token_ids=(7,) * tokens,
        logprobs_R=np.full(tokens, -1, np.float32),
        advantage=1.0,
        reward=1.0,
        unit=1000 * prompt + index if unit is None else unit,
    )


def test_equal_prompts_and_equal_tokens_are_in_memory_once():
    long = [100_000 + i for i in range(50)]
    mix = rows([None] * 3).with_columns(
        prompt_token_ids=pl.Series([long] * 3),
        token_ids=pl.Series([[100_001], [100_002, 100_001], [7]]),
    )
    a, b, _ = samples_of(mix)
    assert list(a.prompt_ids) == long and a.prompt_ids is b.prompt_ids
    assert a.token_ids[0] is b.token_ids[1] is a.prompt_ids[1]


def prompts(count: int, each: int, seed: int = 0) -> list[Sample]:
    draw = np.random.default_rng(seed)
    sizes = [int(draw.integers(5, 60)) for _ in range(count)]
    return [
        sample(p, i, sizes[p], int(draw.integers(1, 40))) for p in range(count) for i in range(each)
    ]


def keys(samples):
    return Counter((s.prompt_id, s.sample_index) for s in samples)


def inside(cut):
    return [s for groups in cut for g in groups for s in g.samples]


# ------------------------------------------------------------------------------------- samples


def rows(logprobs: list) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "prompt_id": "p",
            "sample_index": range(len(logprobs)),
            "iteration": 1,
            "prompt_token_ids": [[1]] * len(logprobs),
            "token_ids": [[4, 5, 2]] * len(logprobs),
            "logprobs": logprobs,
            "advantage": 0.5,
            "reward": 1.0,
        },
        schema_overrides={"logprobs": pl.List(pl.Float32)},
        strict=False,
    )


def test_a_log_mu_that_is_no_number_counts_as_missing():
    found = samples_of(rows([[-1, None, -2], [-1, math.nan, -math.inf], [], [-1, -1], None]))
    assert missing_logprobs(found) == (1 + 2 + 3 + 3 + 3, 15)


def test_a_token_of_missing_log_mu_has_ratio_one_and_still_a_gradient():
    found = samples_of(rows([[-1, None, -2], [math.nan, -1, -1]]))
    logprobs_BT = torch.tensor([[-3.0, -4.0, -2.5], [-5.0, -1.0, -2.0]], requires_grad=True)
    logprobs = CompletionLogprobs(
        logprobs_BT, torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    )
    x = objective_input([Group((1,), tuple(found))], logprobs)
    assert x.log_ratio_BT.tolist() == [[-2.0, 0.0, -0.5], [0.0, 0.0, -1.0]]
    x.log_ratio_BT.sum().backward()
    assert logprobs_BT.grad is not None and logprobs_BT.grad.eq(1).all()
    assert (x.advantage_B.tolist(), x.reward_B.tolist()) == ([0.5, 0.5], [1.0, 1.0])


def test_units_are_those_of_the_column_or_each_row_its_own():
    mix = rows([[-1, -1, -1]] * 3)
    assert [s.unit for s in samples_of(mix)] == [0, 1, 2]
    assert [s.unit for s in samples_of(mix.with_columns(unit=pl.lit(4)))] == [4, 4, 4]


# ------------------------------------------------------------------------------------- steps


@pytest.mark.parametrize("shuffle", ["prompts", "samples"])
def test_each_epoch_holds_every_sample_once_in_full_batches(shuffle):
    samples = prompts(7, 5)
    batches = steps(samples, 10, 2, seed=0, shuffle=shuffle)
    assert [len(batch) for batch in batches] == [10] * 7
    drawn = [s for batch in batches for s in batch]
    assert keys(drawn[:35]) == keys(drawn[35:]) == keys(samples)
    assert [s.sample_index for s in drawn[:35]] != [s.sample_index for s in drawn[35:]]


def test_samples_of_a_prompt_are_neighbours_unless_all_are_shuffled_alike():
    def changes(shuffle):
        [batch] = steps(prompts(20, 5), 100, 1, seed=0, shuffle=shuffle)
        return sum(a.prompt_id != b.prompt_id for a, b in pairwise(batch))

    assert changes("prompts") == 19
    assert changes("samples") > 80


def test_order_depends_on_the_seed_alone():
    samples = prompts(6, 3)
    assert steps(samples, 4, 1, seed=1) == steps(samples, 4, 1, seed=1)
    assert steps(samples, 4, 1, seed=1) != steps(samples, 4, 1, seed=2)


def test_a_pair_is_in_one_step_even_where_that_exceeds_the_batch():
    pairs = [sample(0, i, 3, 2, unit=i // 2) for i in range(6)]
    batches = steps(pairs, 3, 1, seed=0)
    assert [len(batch) for batch in batches] == [4, 2]
    assert all(n == 2 for batch in batches for n in Counter(s.unit for s in batch).values())


# ------------------------------------------------------------------------------------- forwards


@pytest.mark.parametrize("budget", [100, 250, 1000, 10_000])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_forwards_hold_every_sample_once_within_the_budget(budget, processes):
    batch = prompts(9, 8)
    cut = forwards(batch, budget, processes)
    assert keys(inside(cut)) == keys(batch)
    assert all(sum(g.tokens for g in groups) <= budget for groups in cut)
    assert len(cut) % processes == 0


def test_a_prompt_that_fits_is_computed_once():
    cut = forwards(prompts(9, 8), 1000)
    assert Counter(g.prompt_ids for groups in cut for g in groups).most_common(1)[0][1] == 1


def test_a_prompt_that_does_not_fit_is_cut_into_equal_parts():
    cut = forwards([sample(0, i, 100, 50) for i in range(16)], 500)
    assert [[g.tokens for g in groups] for groups in cut] == [[100 + 8 * 50], [100 + 8 * 50]]


def test_a_sample_beyond_the_budget_is_alone():
    cut = forwards([sample(0, 0, 10, 500), sample(0, 1, 10, 5)], 100)
    assert sorted(len(g.samples) for groups in cut for g in groups) == [1, 1]


def test_forwards_are_of_like_cost():
    costs = [sum(g.tokens for g in groups) for groups in forwards(prompts(40, 4), 700)]
    assert len(costs) > 4
    assert min(costs) > 0.6 * max(costs)


def test_forwards_do_not_depend_on_the_order_of_the_batch():
    def said(cut):
        return [[(g.prompt_ids, [s.sample_index for s in g.samples]) for g in f] for f in cut]

    batch = prompts(6, 4)
    assert said(forwards(batch[::-1], 300)) == said(forwards(batch, 300))


def test_a_pair_is_in_one_forward_whatever_the_budget():
    pairs = [sample(0, i, 10, 20, unit=i // 2) for i in range(8)]
    for budget in (1, 55, 100):
        for groups in forwards(pairs, budget):
            assert all(n == 2 for n in Counter(s.unit for s in inside([groups])).values())


def test_processes_share_what_one_forward_would_hold():
    batch = [sample(0, i, 100, 50) for i in range(16)]
    costs = [sum(g.tokens for g in groups) for groups in forwards(batch, 10_000, 2)]
    assert costs == [100 + 8 * 50] * 2


def test_fewer_samples_than_processes_leave_some_without():
    assert len(forwards([sample(0, 0, 10, 5)], 100, processes=4)) == 1


def test_where_prompts_are_not_shared_each_sample_costs_its_own():
    cut = forwards([sample(0, i, 100, 50) for i in range(4)], 300, shares_prefix=False)
    assert [[g.tokens for g in groups] for groups in cut] == [[150, 150], [150, 150]]


@pytest.mark.parametrize("budget", [100, 400, 5000])
@pytest.mark.parametrize("processes", [1, 2])
def test_where_prompts_are_not_shared_padding_counts(budget, processes):
    batch = prompts(9, 8)
    cut = forwards(batch, budget, processes, shares_prefix=False)
    assert keys(inside(cut)) == keys(batch)
    rows = [[s.tokens for s in inside([groups])] for groups in cut]
    assert all(len(tokens) * max(tokens) <= budget for tokens in rows)
    assert len(cut) % processes == 0
    padded = sum(len(tokens) * max(tokens) for tokens in rows)
    assert processes > 1 or budget > 400 or padded < 1.2 * sum(map(sum, rows))


def test_where_prompts_are_not_shared_a_pair_is_not_cut():
    pairs = [sample(0, i, 10, 20, unit=i // 2) for i in range(8)]
    for groups in forwards(pairs, 1, shares_prefix=False):
        assert [s.unit for s in inside([groups])] in [[0, 0], [1, 1], [2, 2], [3, 3]]
