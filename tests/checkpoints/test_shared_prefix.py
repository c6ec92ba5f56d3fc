import logging
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_mask
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from topr_pipeline.checkpoints import prefix_attention, shared_prefix
from topr_pipeline.checkpoints.batches import Group, Sample, objective_input
from topr_pipeline.checkpoints.logprobs import completion_logprobs
from topr_pipeline.checkpoints.objective import make_objective
from topr_pipeline.checkpoints.prefix_attention import Layout, joined
from topr_pipeline.checkpoints.shared_prefix import GroupLogprobs, packed_logprobs

SHORT: dict[str, Any] = {
    "vocab_size": 50,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
COMMON: dict[str, Any] = {
    **SHORT,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
LLAMA_LIKE: dict[str, Any] = {
    **COMMON,
    "intermediate_size": 64,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
SHARING = {
    "llama with grouped keys": LlamaConfig(**LLAMA_LIKE),
    "qwen2": Qwen2Config(**COMMON, intermediate_size=64, num_key_value_heads=2),
    "qwen3": Qwen3Config(**LLAMA_LIKE),
    "gemma3": Gemma3TextConfig(**LLAMA_LIKE),
    "gpt-neox": GPTNeoXConfig(**COMMON, intermediate_size=64),
    "gpt2": GPT2Config(**SHORT, n_embd=32, n_layer=2, n_head=4),
}
REFUSING = {
    "soft-capped attention": Gemma2Config(**LLAMA_LIKE),
    "attention sinks": GptOssConfig(**LLAMA_LIKE, num_local_experts=2, num_experts_per_tok=1),
    "its forward refuses a packed row": MambaConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2
    ),
    "its layers take no attention functions": BloomConfig(
        **SHORT, hidden_size=32, n_layer=2, n_head=4
    ),
}


def made(config):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(deepcopy(config)).eval()


def group(prompt_tokens: int, *lengths: int) -> Group:
    generator = torch.Generator().manual_seed(prompt_tokens)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, 50, (count,), generator=generator).tolist())

    prompt = ids(prompt_tokens)
    samples = (
        Sample(
            prompt_id=str(prompt_tokens),
            sample_index=i,
            iteration=1,
            prompt_ids=prompt,
            token_ids=ids(length),
            logprobs_R=np.full(length, -3.5, np.float32),
            advantage=(-1.0) ** i,
            reward=1.0,
            unit=i,
        )
        for i, length in enumerate(lengths)
    )
    return Group(prompt, tuple(samples))


GROUPS = [group(9, 5, 1, 7), group(3, 4), group(6, 1, 1), group(1, 3, 3)]


def told(caplog) -> list[str]:
    """What was warned of, in our own words."""
    ours = [r for r in caplog.records if r.name.startswith("topr_pipeline")]
    return [r.getMessage() for r in ours if r.levelno >= logging.WARNING]


def plain(model, groups):
    samples = [s for g in groups for s in g.samples]
    return completion_logprobs(
        model, [s.prompt_ids for s in samples], [s.token_ids for s in samples]
    )


def gradient(model, logprobs_of, cut=(GROUPS,), objective="topr"):
    """Of the objective over all samples, in one forward or several, as one vector."""
    model.zero_grad()
    objective_of = make_objective(objective).loss
    for forward in cut:
        x = objective_input(forward, logprobs_of(model, forward))
        objective_of(x).loss_B.sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def assert_close(found, wanted, rtol=1e-5):
    assert (found - wanted).norm() <= rtol * wanted.norm()


@pytest.mark.parametrize("name", SHARING)
@pytest.mark.parametrize("attention", ["merged", "joined"])
def test_log_probs_and_gradients_are_those_of_the_plain_path(name, attention, monkeypatch):
    if attention == "joined":
        monkeypatch.setattr(prefix_attention._Merged, "apply", joined)
    model, reference = made(SHARING[name]), made(SHARING[name])
    logprobs_of = GroupLogprobs()
    found, wanted = logprobs_of(model, GROUPS), plain(reference, GROUPS)
    assert logprobs_of.shares_prefix
    torch.testing.assert_close(found.logprobs_BT, wanted.logprobs_BT, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.entropy_BT, wanted.entropy_BT, rtol=1e-5, atol=1e-5)
    assert found.mask_BT.equal(wanted.mask_BT)
    assert_close(gradient(model, packed_logprobs), gradient(reference, plain))


@pytest.mark.parametrize("objective", ["topr", "ppo", "grpo"])
def test_the_loss_does_not_depend_on_how_samples_are_packed(objective):
    alone = [[Group(g.prompt_ids, (s,))] for g in GROUPS for s in g.samples]
    halves = [GROUPS[2:], GROUPS[:2][::-1]]
    wanted = gradient(made(SHARING["qwen3"]), packed_logprobs, (GROUPS,), objective)
    for packing in (alone, halves):
        found = gradient(made(SHARING["qwen3"]), packed_logprobs, packing, objective)
        assert_close(found, wanted)


def test_a_prompt_is_computed_once_and_nothing_is_padded():
    model, seen = made(SHARING["qwen2"]), []
    model.model.layers[0].mlp.register_forward_hook(lambda _, args, __: seen.append(args[0].shape))
    packed_logprobs(model, GROUPS)
    # Per group P + sum(R - 1): no one asks what would follow a sample's last token.
    assert seen == [(1, (9 + 4 + 0 + 6) + (3 + 3) + (6 + 0 + 0) + (1 + 2 + 2), 32)]


def test_gradient_checkpointing_changes_nothing():
    model, reference = made(SHARING["qwen3"]), made(SHARING["qwen3"])
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    assert_close(gradient(model, packed_logprobs), gradient(reference, plain))


def test_half_precision_shares_too():
    model = made(SHARING["llama with grouped keys"])
    logprobs_of = GroupLogprobs()
    with torch.autocast("cpu", torch.bfloat16):
        found = logprobs_of(model, GROUPS)
    assert logprobs_of.shares_prefix
    wanted = plain(made(SHARING["llama with grouped keys"]), GROUPS)
    assert (found.logprobs_BT - wanted.logprobs_BT).abs().sum() / wanted.mask_BT.sum() < 0.05
    found.logprob_B.sum().backward()


@pytest.mark.parametrize("reason", REFUSING)
def test_an_architecture_that_cannot_share_is_computed_plainly_with_one_warning(reason, caplog):
    model, logprobs_of = made(REFUSING[reason]), GroupLogprobs()
    before = model.config._attn_implementation
    found = logprobs_of(model, GROUPS)
    logprobs_of(model, GROUPS)
    [said] = told(caplog)
    assert reason in said and not logprobs_of.shares_prefix
    assert model.config._attn_implementation == before
    wanted = plain(made(REFUSING[reason]), GROUPS)
    torch.testing.assert_close(found.logprobs_BT, wanted.logprobs_BT, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("others", [[], ["another process cannot"]])
def test_all_processes_share_or_none(monkeypatch, caplog, others):
    monkeypatch.setattr(shared_prefix, "everyones", lambda own: [own, *others])
    logprobs_of = GroupLogprobs()
    logprobs_of.verify(made(SHARING["qwen2"]), GROUPS)
    assert logprobs_of.shares_prefix == (not others)
    assert len(told(caplog)) == len(others)


def test_too_little_memory_is_not_taken_for_an_architecture(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(shared_prefix, "_packed", full)
    with pytest.raises(torch.OutOfMemoryError):
        GroupLogprobs().verify(made(SHARING["qwen2"]), GROUPS)


def test_a_model_whose_positions_are_not_told_is_caught(caplog):
    model, logprobs_of = made(SHARING["gpt2"]), GroupLogprobs()
    forward = model.forward
    model.forward = lambda position_ids=None, **kwargs: forward(**kwargs)
    found = logprobs_of(model, GROUPS)
    assert "its log-probs differ by" in told(caplog)[0]
    wanted = plain(made(SHARING["gpt2"]), GROUPS)
    torch.testing.assert_close(found.logprobs_BT, wanted.logprobs_BT, rtol=1e-4, atol=1e-4)


def test_samples_longer_than_a_sliding_window_are_computed_plainly(caplog):
    config = MistralConfig(**LLAMA_LIKE, sliding_window=12)
    logprobs_of = GroupLogprobs()
    short = [group(4, 3, 8)]
    model = made(config)
    torch.testing.assert_close(
        logprobs_of(model, short).logprobs_BT, plain(made(config), short).logprobs_BT
    )
    assert told(caplog) == []
    found = logprobs_of(model, GROUPS)
    assert "up to 16 tokens exceed the attention window of 12" in told(caplog)[0]
    torch.testing.assert_close(
        found.logprobs_BT, plain(made(config), GROUPS).logprobs_BT, rtol=1e-5, atol=1e-5
    )
    assert logprobs_of.shares_prefix


def test_sharing_can_be_left_out():
    model = made(SHARING["qwen2"])
    GroupLogprobs(shares_prefix=False)(model, GROUPS)
    assert model.config._attn_implementation == "sdpa"


def test_who_sees_whom():
    # A prompt of 2 with samples of 2 and 1, then a lone sample of 2.
    layout = Layout([(0, 2), (2, 4), (4, 5), (5, 7)], [(0, 2, 5)])
    seen = create_mask(layout.visible(torch.device("cpu")), None, None, 7, 7, device="cpu")
    assert seen[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 1, 1],
    ]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_both_ways_to_attend_are_that_of_the_mask(kv_heads):
    layout = Layout(
        [(0, 5), (5, 8), (8, 15), (15, 17), (17, 20), (20, 21)], [(0, 5, 15), (17, 20, 21)]
    )
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, h, 21, 8, generator=generator, dtype=torch.float64).requires_grad_()
        for h in (4, kv_heads, kv_heads)
    )
    mask = create_mask(layout.visible(torch.device("cpu")), None, None, 21, 21, device="cpu")
    dense = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, mask, scale=0.3, enable_gqa=True
    )
    grad = torch.randn(dense.shape, generator=generator, dtype=torch.float64)
    wanted = dense, *torch.autograd.grad(dense, (q, k, v), grad)
    for attend in (joined, prefix_attention._Merged.apply):
        out = attend(q, k, v, layout, 0.3)
        found = out, *torch.autograd.grad(out, (q, k, v), grad)
        for part, expected in zip(found, wanted, strict=True):
            torch.testing.assert_close(part, expected)
