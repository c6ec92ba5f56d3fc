"""The vLLM engine on CPU with a random Llama; wants `make vllm`. vLLM starts once, in a minute."""

import os
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from topr_pipeline.checkpoints.agreement import agreement
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Sampling
from topr_pipeline.solutions import Completion, Request, make_engine
from topr_pipeline.solutions.transformers_engine import TransformersEngine
from topr_pipeline.solutions.vllm_engine import VllmEngine

pytestmark = pytest.mark.vllm

EOS, CONTEXT, LONGEST = 2, 128, 24
SAMPLING = Sampling.model_validate(
    {
        "engine": "vllm",
        "temperature": 0.8,
        "top_k": 20,
        "stop": ["w5 w6", "w7"],
        "max_tokens": LONGEST,
        "vllm": {"enforce_eager": True, "gpu_memory_utilization": 0.1, "max_num_seqs": 16},
    }
)
BATCH = [Request("w9 w8 w9 w8 w9", 3), Request("w11", 12), Request("w12 w13", 1)]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random fp32 model with logits far from uniform."""
    folder = tmp_path_factory.mktemp("policy")
    ids = {f"w{i}": i for i in range(64) if i != EOS} | {"<eos>": EOS}
    words = Tokenizer(WordLevel(ids, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()  # pyrefly: ignore
    # no unk_token: "w0" would be a special token, and left out of a completion's text
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=EOS,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def engine(policy: Path) -> Iterator[VllmEngine]:
    engine = make_engine("vllm")
    assert isinstance(engine, VllmEngine)
    engine.start(policy, SAMPLING)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def answers(engine: VllmEngine) -> list[list[Completion]]:
    return engine.generate(BATCH, seed=5)


def test_answers_come_in_order_with_the_prompts_as_every_engine_reads_them(policy, answers):
    other = TransformersEngine()
    other.start(policy, SAMPLING)
    expected = other.generate(BATCH, seed=5)
    other.close()
    assert [len(a) for a in answers] == [r.n for r in BATCH]
    assert [a[0].prompt_token_ids for a in answers] == [a[0].prompt_token_ids for a in expected]


def test_logprobs_are_the_models_own_whatever_is_sampled_with(policy: Path, answers):
    rows = [
        {key: getattr(c, key) for key in ("prompt_token_ids", "token_ids", "logprobs")}
        for a in answers
        for c in a
    ]
    found = agreement(pl.LazyFrame(rows), policy)
    assert found.sequences == sum(r.n for r in BATCH)
    assert found.max_difference < 1e-3


def test_a_sample_ends_with_eos_a_stop_string_or_the_last_token(answers):
    ends = set()
    for c in (c for a in answers for c in a):
        said = [f"w{t}" for t in c.token_ids if t != EOS]
        if c.token_ids[-1] == EOS:
            ends.add("eos")
            assert c.finish_reason == "stop"
            assert c.text.split() == said
        elif c.finish_reason == "stop":
            ends.add("stop string")
            assert any(stop in " ".join(said[-2:]) for stop in SAMPLING.stop)  # also in "w5 w62"
            assert "w7" not in c.text
        else:
            ends.add("length")
            assert len(c.token_ids) == LONGEST
    assert "length" in ends and len(ends) > 1


def test_equal_batches_and_seeds_give_equal_samples_whatever_came_before(engine, monkeypatch):
    monkeypatch.setattr(engine, "sampling", SAMPLING.model_copy(update={"stop": ()}))
    first = engine.generate(BATCH, seed=5)
    others = engine.generate(BATCH[:2], seed=6)
    assert others != first[:2]
    assert engine.generate(BATCH, seed=5) == first
    assert engine.generate(BATCH, seed=2**32 + 6)[:2] == engine.generate(BATCH, seed=6)[:2]


def test_samples_of_one_prompt_differ(answers):
    assert len({tuple(c.token_ids) for c in answers[1]}) > 6


def test_a_prompt_beyond_the_context_is_refused_before_any_sample(engine: VllmEngine):
    with pytest.raises(ToprError, match=r"context of 128; sampling\.max_tokens"):
        engine.generate([Request("w9 " * (CONTEXT - LONGEST + 1), 1)], seed=0)


def test_this_process_is_left_as_it_was(engine: VllmEngine, answers):
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    assert torch.get_num_threads() == before + 1
    torch.set_num_threads(before)
    assert not torch.distributed.is_initialized()
    assert len(os.sched_getaffinity(0)) == os.cpu_count()


def test_a_policy_that_does_not_start_is_reported_with_the_keys(policy: Path):
    too_long = SAMPLING.model_copy(
        update={"vllm": SAMPLING.vllm.model_copy(update={"max_model_len": CONTEXT + 1})}
    )
    with pytest.raises(ToprError, match=r"(?s)vLLM does not start on .*sampling\.vllm"):
        make_engine("vllm").start(policy, too_long)
