from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers import PreTrainedTokenizerFast as FastTokenizer

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Sampling
from topr_pipeline.solutions import Completion, Request
from topr_pipeline.solutions import transformers_engine as module
from topr_pipeline.solutions.transformers_engine import TransformersEngine

UNK, EOS, CONTEXT = 0, 2, 64
WORD = ["<unk>", "<bos>", "<eos>", *(f"w{i}" for i in range(3, 29))]
SHORT, LONG = "w3", "w4 w5 w6 w7 w8 w9 w10"
BATCH = [Request(LONG, 3), Request(SHORT, 2), Request("w11 w12", 1)]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with logits far from uniform; its tokenizer has no pad token."""
    folder = tmp_path_factory.mktemp("policy")
    vocabulary = {word: i for i, word in enumerate(WORD)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    FastTokenizer(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>").save_pretrained(
        folder
    )
    config = LlamaConfig(
        vocab_size=len(WORD),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.6,
        bos_token_id=1,
        eos_token_id=EOS,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def generate(
    policy: Path, batch: list[Request] = BATCH, seed: int = 0, **keys: Any
) -> list[list[Completion]]:
    engine = TransformersEngine()
    keys = {"max_tokens": 20, "batch_size": 64, **keys}
    engine.start(policy, Sampling.model_validate(keys))
    try:
        return engine.generate(batch, seed)
    finally:
        engine.close()


def flat(answers: list[list[Completion]]) -> list[Completion]:
    return [c for a in answers for c in a]


@torch.no_grad()
def forward_logits_RV(policy: Path, completion: Completion) -> torch.Tensor:
    """The model's logits for each token of the completion, from one plain forward pass."""
    model: Any = AutoModelForCausalLM.from_pretrained(policy)
    ids = completion.prompt_token_ids + completion.token_ids
    return model(torch.tensor([ids])).logits[0, len(completion.prompt_token_ids) - 1 : -1]


def own_logprobs(policy: Path, completion: Completion) -> list[float]:
    logprobs_RV = forward_logits_RV(policy, completion).log_softmax(-1)
    return logprobs_RV[range(len(completion.token_ids)), completion.token_ids].tolist()


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"temperature": 0.7},
        {"top_k": 3},
        {"top_p": 0.8},
        {"temperature": 2.0, "top_k": 9, "top_p": 0.9},
        {"batch_size": 2},
    ],
    ids=str,
)
def test_logprobs_are_the_models_own_whatever_is_sampled_with(policy: Path, keys: dict[str, Any]):
    for completion in flat(generate(policy, **keys)):
        assert completion.logprobs == pytest.approx(own_logprobs(policy, completion), abs=1e-4)


def test_prompts_go_out_as_the_tokenizer_made_them_and_answers_in_order(policy: Path):
    answers = generate(policy)
    assert [len(a) for a in answers] == [3, 2, 1]
    assert [a[0].prompt_token_ids for a in answers] == [[4, 5, 6, 7, 8, 9, 10], [3], [11, 12]]


def test_eos_is_kept_and_last(policy: Path):
    completions = flat(generate(policy, [Request(SHORT, 40), Request(LONG, 40)], max_tokens=12))
    reasons = [c.finish_reason for c in completions]
    assert {"stop", "length"} == set(reasons)
    for completion in completions:
        stops = [i for i, t in enumerate(completion.token_ids) if t == EOS]
        assert len(completion.logprobs) == len(completion.token_ids)
        if completion.finish_reason == "stop":
            assert stops == [len(completion.token_ids) - 1]
        else:
            assert stops == [] and len(completion.token_ids) == 12
        assert "<eos>" not in completion.text
        assert completion.text.split() == [
            WORD[t] for t in completion.token_ids if t not in (UNK, EOS)
        ]


def test_one_token_is_sampled_when_only_one_may_be(policy: Path):
    assert {len(c.token_ids) for c in flat(generate(policy, max_tokens=1))} == {1}


def test_equal_seeds_give_equal_samples_whatever_the_global_seed(policy: Path):
    first = generate(policy, seed=5)
    torch.manual_seed(99)
    assert generate(policy, seed=5) == first
    assert generate(policy, seed=6) != first


def test_top_k_1_is_the_most_probable_token(policy: Path):
    for completion in flat(generate(policy, top_k=1)):
        best_R = forward_logits_RV(policy, completion).argmax(-1)
        assert completion.token_ids == best_R.tolist()


def test_padding_and_neighbours_change_nothing(policy: Path):
    together = generate(policy, top_k=1)
    for request, completions in zip(BATCH, together, strict=True):
        alone = generate(policy, [Request(request.prompt, 1)], top_k=1)[0][0]
        for completion in completions:
            assert completion.token_ids == alone.token_ids
            assert completion.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


@pytest.mark.parametrize("dense", [0.0, 0.5, 1.0])
def test_logprobs_are_right_whenever_finished_rows_leave(
    policy: Path, monkeypatch: pytest.MonkeyPatch, dense: float
):
    monkeypatch.setattr(module, "DENSE", dense)
    completions = flat(generate(policy, [Request(SHORT, 30), Request(LONG, 30)]))
    assert {c.finish_reason for c in completions} == {"stop", "length"}
    for completion in completions[::7]:
        assert completion.logprobs == pytest.approx(own_logprobs(policy, completion), abs=1e-4)


def test_first_tokens_are_distributed_as_the_model_says(policy: Path):
    n = 4000
    cases: list[dict[str, Any]] = [{}, {"temperature": 0.6, "top_k": 4}]
    for keys in cases:
        completions = generate(policy, [Request(SHORT, n)], max_tokens=1, batch_size=n, **keys)[0]
        drawn_V = torch.bincount(
            torch.tensor([c.token_ids[0] for c in completions]), minlength=len(WORD)
        )
        logits_V = forward_logits_RV(policy, completions[0])[0] / keys.get("temperature", 1.0)
        if "top_k" in keys:
            logits_V[logits_V < logits_V.topk(keys["top_k"]).values[-1]] = -torch.inf
        assert (drawn_V / n - logits_V.softmax(-1)).abs().max() < 4 * 0.5 / n**0.5


def test_a_prompt_beyond_the_context_is_refused_naming_key_and_prompt(policy: Path):
    fits = CONTEXT - len(LONG.split())
    generate(policy, max_tokens=fits)
    with pytest.raises(ToprError, match=rf"context of 64; sampling\.max_tokens, prompt '{LONG}'"):
        generate(policy, max_tokens=fits + 1)


def test_a_prompt_without_tokens_is_refused(policy: Path):
    with pytest.raises(ToprError, match="no tokens"):
        generate(policy, [Request("", 1)])


def test_a_folder_without_a_model_is_refused(tmp_path: Path):
    with pytest.raises(ToprError, match=r"config\.json is missing"):
        generate(tmp_path / "nothing")


def test_a_diverged_policy_is_refused(policy: Path, tmp_path: Path):
    model: Any = AutoModelForCausalLM.from_pretrained(policy)
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))
    model.save_pretrained(tmp_path)
    for file in policy.glob("token*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ToprError, match="not finite"):
        generate(tmp_path)


def test_a_stop_string_ends_a_sample_and_its_tokens_are_kept(policy: Path):
    batch = [Request(SHORT, 24)]
    said = [decoded(c).split() for c in flat(generate(policy, batch))]
    pairs = Counter(" ".join(pair) for words in said for pair in pairwise(words))
    stop = pairs.most_common(1)[0][0]
    samples = flat(generate(policy, batch, stop=[stop, "never said"]))
    ended = [c for c in samples if stop in decoded(c)]
    assert 0 < len(ended) < len(samples)
    for c in ended:
        assert c.finish_reason == "stop"
        assert decoded(c) == c.text + stop
        assert len(c.logprobs) == len(c.token_ids)
    others = [c for c in samples if c not in ended]
    assert all((c.finish_reason == "stop") == (c.token_ids[-1] == EOS) for c in others)


def decoded(completion: Completion, end: int | None = None) -> str:
    return " ".join(WORD[t] for t in completion.token_ids[:end] if t != EOS)


def test_a_stop_string_at_the_last_token_is_a_stop(policy: Path):
    (free,) = generate(policy, [Request(SHORT, 4)], max_tokens=5, stop=[])
    full = next(c for c in free if len(c.token_ids) == 5 and c.finish_reason == "length")
    last = WORD[full.token_ids[-1]]
    (stopped,) = generate(policy, [Request(SHORT, 4)], max_tokens=5, stop=[last])
    assert all(c.finish_reason == "stop" for c in stopped if last in decoded(c))
    assert any(last in decoded(c) for c in stopped)


def test_a_prompt_that_begins_with_a_special_token_is_read_as_it_stands(policy: Path):
    (completion,) = generate(policy, [Request("<eos> w3", 1)])[0]
    assert completion.prompt_token_ids == [EOS, 3]
