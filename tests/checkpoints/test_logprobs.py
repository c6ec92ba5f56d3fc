import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    PhiConfig,
)

from topr_pipeline.checkpoints import chunked_head
from topr_pipeline.checkpoints.chunked_head import Shaping
from topr_pipeline.checkpoints.logprobs import completion_logprobs
from topr_pipeline.errors import ToprError

EOS = 2
PROMPTS = [[1, 4, 5], [1], [1, 9, 9, 9, 9, 9]]
COMPLETIONS = [[6, 7, EOS], [8, EOS, 8, 10, 11, EOS], [12]]


@pytest.fixture(autouse=True)
def chunks_of_three(monkeypatch):
    """Ten tokens over a vocabulary of 30 go through the head in four chunks."""
    monkeypatch.setattr(chunked_head, "CPU_CHUNK", 3 * 30 * 4)


def naive(model, prompt, completion):
    """The definition, one row at a time: full logits, fp32 log-softmax, gather; and entropy."""
    logits_TV = model(torch.tensor([[*prompt, *completion]])).logits[0].float()
    logprobs_TV = torch.log_softmax(logits_TV, -1)[len(prompt) - 1 : -1]
    entropy_T = -(logprobs_TV.exp() * logprobs_TV).sum(-1)
    return logprobs_TV[range(len(completion)), completion], entropy_T.detach()


def small(config_class, **sizes):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config_class(vocab_size=30, **sizes)).eval()


LLAMA_LIKE = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "initializer_range": 0.5,
    "bos_token_id": 1,
    "eos_token_id": EOS,
}
ARCHITECTURES = {
    "soft-capped logits": (
        Gemma2Config,
        {**LLAMA_LIKE, "head_dim": 8, "final_logit_softcapping": 0.5},
    ),
    "divided logits": (GraniteConfig, {**LLAMA_LIKE, "logits_scaling": 4.0}),
    "multiplied logits": (CohereConfig, {**LLAMA_LIKE, "logit_scale": 0.25}),
    "an untied head with a bias": (PhiConfig, LLAMA_LIKE),
    "learned positions": (
        GPT2Config,
        {"n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": 1, "eos_token_id": EOS},
    ),
}


@pytest.fixture(params=ARCHITECTURES)
def other(request):
    """A model of another architecture."""
    config, sizes = ARCHITECTURES[request.param]
    model = small(config, **sizes)
    for name, parameter in model.named_parameters():
        if name == "lm_head.bias":
            torch.nn.init.normal_(parameter)
    return model


def test_equals_a_full_forward_pass_row_by_row(model):
    logprobs_BT, entropy_BT, mask_BT = completion_logprobs(model, PROMPTS, COMPLETIONS)
    assert logprobs_BT.shape == (3, 6)
    assert mask_BT.sum(1).tolist() == [3, 6, 1]
    for b, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        expected, entropy = naive(model, prompt, completion)
        torch.testing.assert_close(logprobs_BT[b, : len(completion)], expected)
        torch.testing.assert_close(entropy_BT[b, : len(completion)], entropy)
        assert logprobs_BT[b, len(completion) :].eq(0).all()
        assert entropy_BT[b, len(completion) :].eq(0).all()


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_same_gradients(model):
    """Of weighted log-probs, against full logits; the weights tell tokens apart."""
    logprobs_BT = completion_logprobs(model, PROMPTS, COMPLETIONS).logprobs_BT
    weight_BT = torch.linspace(-1, 2, 18).reshape(3, 6)
    ours = gradients(model, (logprobs_BT * weight_BT).sum())
    rows = zip(PROMPTS, COMPLETIONS, strict=True)
    full = sum(
        (naive(model, p, c)[0] * weight_BT[b, : len(c)]).sum() for b, (p, c) in enumerate(rows)
    )
    theirs = gradients(model, full)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-5)


def test_gradients_equal_those_of_a_full_forward_pass(model):
    assert_same_gradients(model)


def test_what_a_model_does_to_its_logits_and_positions_is_respected(other):
    found_B = completion_logprobs(other, PROMPTS, COMPLETIONS).logprob_B
    for b, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        torch.testing.assert_close(found_B[b], naive(other, prompt, completion)[0].sum())
    assert_same_gradients(other)


class LowRank(torch.nn.Module):
    """A head as peft makes it: another module around the layer, whose weights are frozen."""

    def __init__(self, base: torch.nn.Linear):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = (
            torch.nn.Linear(base.in_features, 2),
            torch.nn.Linear(2, base.out_features),
        )
        self.weight = base.weight

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


@pytest.mark.parametrize("name", [None, "soft-capped logits"])
def test_a_head_that_is_no_plain_layer_gets_its_gradients_too(name, model):
    if name is not None:
        config, sizes = ARCHITECTURES[name]
        model = small(config, **sizes)
    model.lm_head = LowRank(model.lm_head)
    assert_same_gradients(model)
    assert model.lm_head.up.weight.grad is not None


def test_a_frozen_head_gets_no_gradient_and_passes_it_on(model):
    model.lm_head.weight.requires_grad_(False)
    assert_same_gradients(model)


def test_a_row_does_not_depend_on_its_neighbours_length(model):
    alone = completion_logprobs(model, PROMPTS[:1], COMPLETIONS[:1]).logprob_B
    beside = completion_logprobs(model, [PROMPTS[0], [1] * 20], [COMPLETIONS[0], [5] * 20])
    torch.testing.assert_close(beside.logprob_B[0], alone[0])


def test_eos_counts_where_it_is_the_padding_token_too(model):
    assert model.config.pad_token_id == EOS
    logprobs_BT = completion_logprobs(model, PROMPTS, COMPLETIONS).logprobs_BT
    shorter_BT = completion_logprobs(model, PROMPTS, [[6, 7], *COMPLETIONS[1:]]).logprobs_BT
    assert logprobs_BT[0, 2] < 0
    assert shorter_BT[0, 2] == 0
    assert logprobs_BT[1].ne(0).sum() == 6


def test_logits_exist_a_chunk_at_a_time(model, monkeypatch):
    made = []

    class Counting(chunked_head._Logits):
        def __call__(self, hidden_CH):
            made.append(super().__call__(hidden_CH))
            return made[-1]

    monkeypatch.setattr(chunked_head, "_Logits", Counting)
    completion_logprobs(model, PROMPTS, COMPLETIONS).logprob_B.sum().backward()
    assert [len(logits) for logits in made] == [3, 3, 3, 1] * 2
    assert len({logits.data_ptr() for logits in made}) <= 2  # one buffer forward, one backward


class Allocated(TorchDispatchMode):
    """Counts the bytes that are alive of all that torch makes within the block."""

    def __init__(self):
        super().__init__()
        self.alive, self.peak, self.known = 0, 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key not in self.known:
            self.known.add(key)
            self.alive += size
            self.peak = max(self.peak, self.alive)
            weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key, size):
        self.known.discard(key)
        self.alive -= size


HEADS = {
    "plain": (Shaping(), False),
    "capped": (Shaping(cap=30.0), False),
    "scaled and capped": (Shaping(0.5, 30.0), False),
    "low-rank": (Shaping(), True),
    "low-rank, scaled and capped": (Shaping(0.5, 30.0), True),
}


@pytest.mark.parametrize("name", HEADS)
def test_two_buffers_of_a_chunk_are_alive_at_most_whatever_the_head(name, monkeypatch):
    shaping, wrapped = HEADS[name]
    tokens, vocabulary, width = 256, 1024, 2
    chunk = 64 * vocabulary * 4
    monkeypatch.setattr(chunked_head, "CPU_CHUNK", chunk)
    head = torch.nn.Linear(width, vocabulary, bias=False)
    head = (LowRank(head) if wrapped else head).requires_grad_(False)
    hidden_NH = torch.randn(tokens, width, requires_grad=True)
    target_N = torch.zeros(tokens, dtype=torch.long)
    with Allocated() as allocated:
        logprob_N, _ = chunked_head.token_logprobs(head, hidden_NH, target_N, vocabulary, shaping)
        logprob_N.sum().backward()
    assert chunk <= allocated.peak <= 2.1 * chunk  # and not the four of all tokens


def test_half_precision_is_summed_up_in_full(model):
    exact = completion_logprobs(model, PROMPTS, COMPLETIONS)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = completion_logprobs(model, PROMPTS, COMPLETIONS)
    assert mixed.logprobs_BT.dtype == mixed.entropy_BT.dtype == torch.float32
    assert not mixed.logprobs_BT.equal(exact.logprobs_BT)
    torch.testing.assert_close(mixed.logprobs_BT, exact.logprobs_BT, rtol=0, atol=0.1)
    mixed.logprob_B.sum().backward()
    assert model.lm_head.weight.grad.dtype == torch.float32


def test_the_model_is_left_as_it_was(model):
    completion_logprobs(model, PROMPTS, COMPLETIONS)
    assert model(torch.tensor([[1, 4]])).logits.shape == (1, 2, 30)


def test_a_model_that_bypasses_its_head_is_refused(model):
    model.get_output_embeddings = lambda: torch.nn.Linear(16, 30)
    with pytest.raises(ToprError, match="calls its LM head as a module 0 times"):
        completion_logprobs(model, PROMPTS, COMPLETIONS)


def test_a_model_that_does_something_else_to_its_logits_is_refused(model):
    forward = model.forward

    def odd(**kwargs):
        output = forward(**kwargs)
        output.logits = output.logits.square()
        return output

    model.forward = odd
    with pytest.raises(ToprError, match="does something to its logits that is not known"):
        completion_logprobs(model, PROMPTS, COMPLETIONS)
