import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, GraniteConfig

from topr_pipeline.checkpoints.logprobs import completion_logprobs
from topr_pipeline.errors import ToprError

EOS = 2
PROMPTS = [[1, 4, 5], [1], [1, 9, 9, 9, 9, 9]]
COMPLETIONS = [[6, 7, EOS], [8, EOS, 8, 10, 11, EOS], [12]]


def naive(model, prompt, completion):
    """The definition, one row at a time: full logits, fp32 log-softmax, gather."""
    logits_TV = model(torch.tensor([[*prompt, *completion]])).logits[0].float()
    logprobs_TV = torch.log_softmax(logits_TV, -1)
    first = len(prompt)
    return torch.stack([logprobs_TV[first + i - 1, token] for i, token in enumerate(completion)])


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
}
ARCHITECTURES = {
    "soft-capped logits": (
        Gemma2Config,
        {**LLAMA_LIKE, "head_dim": 8, "final_logit_softcapping": 0.5},
    ),
    "scaled logits": (GraniteConfig, {**LLAMA_LIKE, "logits_scaling": 4.0}),
    "learned positions": (GPT2Config, {"n_embd": 16, "n_layer": 1, "n_head": 2}),
}


def test_equals_a_full_forward_pass_row_by_row(model):
    logprob_B, logprobs_BT = completion_logprobs(model, PROMPTS, COMPLETIONS)
    assert logprobs_BT.shape == (3, 6)
    for b, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        expected = naive(model, prompt, completion)
        torch.testing.assert_close(logprobs_BT[b, : len(completion)], expected)
        assert logprobs_BT[b, len(completion) :].eq(0).all()
        torch.testing.assert_close(logprob_B[b], expected.sum())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_a_model_does_to_its_logits_and_positions_is_respected(name):
    config, sizes = ARCHITECTURES[name]
    model = small(config, **sizes)
    logprob_B, _ = completion_logprobs(model, PROMPTS, COMPLETIONS)
    expected_B = torch.stack(
        [naive(model, p, c).sum() for p, c in zip(PROMPTS, COMPLETIONS, strict=True)]
    )
    torch.testing.assert_close(logprob_B, expected_B)


def test_a_row_does_not_depend_on_its_neighbours_length(model):
    alone, _ = completion_logprobs(model, PROMPTS[:1], COMPLETIONS[:1])
    beside, _ = completion_logprobs(model, [PROMPTS[0], [1] * 20], [COMPLETIONS[0], [5] * 20])
    torch.testing.assert_close(beside[0], alone[0])


def test_eos_counts_where_it_is_the_padding_token_too(model):
    assert model.config.pad_token_id == EOS
    _, logprobs_BT = completion_logprobs(model, PROMPTS, COMPLETIONS)
    _, shorter_BT = completion_logprobs(model, PROMPTS, [[6, 7], *COMPLETIONS[1:]])
    assert logprobs_BT[0, 2] < 0
    assert shorter_BT[0, 2] == 0
    assert logprobs_BT[1].ne(0).sum() == 6


def test_gradients_equal_those_of_a_full_forward_pass(model):
    completion_logprobs(model, PROMPTS, COMPLETIONS).logprob_B.sum().backward()
    ours = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True):
        naive(model, prompt, completion).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-4, atol=1e-5)


def test_only_completion_positions_go_through_the_head(model):
    seen = []
    model.lm_head.register_forward_hook(lambda _, __, logits: seen.append(tuple(logits.shape)))
    completion_logprobs(model, PROMPTS, COMPLETIONS)
    assert seen == [(1, 10, 30)]
    assert model(torch.tensor([[1, 4]])).logits.shape == (1, 2, 30)


def test_a_model_that_bypasses_its_head_is_refused(model):
    model.get_output_embeddings = lambda: torch.nn.Linear(16, 30)
    with pytest.raises(ToprError, match="does not call its LM head"):
        completion_logprobs(model, PROMPTS, COMPLETIONS)
