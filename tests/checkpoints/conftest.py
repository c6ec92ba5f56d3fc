from pathlib import Path

import polars as pl
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from topr_pipeline.checkpoints.folders import save
from topr_pipeline.checkpoints.logprobs import completion_logprobs
from topr_pipeline.tables import MIX

EOS = 2


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


def tiny_llama() -> LlamaForCausalLM:
    """A random Llama over 30 tokens; std 0.3 so that its log-probs differ between tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=30,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        pad_token_id=EOS,
        bos_token_id=1,
        eos_token_id=EOS,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def model() -> LlamaForCausalLM:
    return tiny_llama()


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with a tokenizer, as a folder."""
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(30)}, unk_token="w3"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyrefly: ignore
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="w1", eos_token="w2", pad_token="w2", unk_token="w3"
    )
    folder = tmp_path_factory.mktemp("policy") / "start"
    save(tiny_llama(), tokenizer, folder)
    return folder


@pytest.fixture(scope="session")
def mix() -> pl.DataFrame:
    """20 rows of the tiny Llama's own samples' form, its log-probs as mu, signs alternating."""
    prompts = [[1, *range(4, 4 + i % 3)] for i in range(20)]
    completions = [[*range(5 + i % 7, 6 + i % 7 + i % 5), EOS] for i in range(20)]
    with torch.no_grad():
        found = completion_logprobs(tiny_llama(), prompts, completions)
    rows = zip(found.logprobs_BT.tolist(), completions, strict=True)
    logprobs = [row[: len(c)] for row, c in rows]
    reward = [1.0 if i % 2 else -1.0 for i in range(20)]
    return MIX.conform(
        pl.DataFrame(
            {
                "prompt_id": [f"p{i}" for i in range(20)],
                "sample_index": 0,
                "iteration": 1,
                "reward": reward,
                "advantage": reward,
                "prompt_token_ids": prompts,
                "token_ids": completions,
                "logprobs": logprobs,
                "logprob": found.logprob_B.tolist(),
            }
        )
    )
