import subprocess
import sys

import pytest
import torch

from topr_pipeline.checkpoints import describe, prepare_base_policy
from topr_pipeline.checkpoints.base import SPECIAL_TOKENS, demonstration_mix, tiny_tokenizer
from topr_pipeline.checkpoints.folders import load
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import FolderPolicy, TinyPolicy
from topr_pipeline.prompts.word_problems import vocabulary
from topr_pipeline.tables import MIX, content_hash

TINY = TinyPolicy(
    source="tiny",
    hidden_size=16,
    layers=1,
    heads=2,
    feed_forward=32,
    pretrain_steps=3,
    batch_size=4,
)


def test_pretraining_is_reproducible_and_follows_the_seed(tmp_path):
    logs = [prepare_base_policy(TINY, tmp_path / n, s) for n, s in (("a", 1), ("b", 1), ("c", 2))]
    hashes = [content_hash(tmp_path / name) for name in "abc"]
    assert hashes[0] == hashes[1] != hashes[2]
    assert logs[0] is not None and logs[0]["step"].to_list() == [1, 2, 3]
    assert logs[0]["positives"].to_list() == [4, 4, 4]


def test_without_pretraining_the_weights_are_those_drawn(tmp_path):
    untrained = TINY.model_copy(update={"pretrain_steps": 0})
    assert prepare_base_policy(untrained, tmp_path / "out", 0) is None
    model, tokenizer = load(tmp_path / "out", "auto")
    assert model.config.vocab_size == len(tokenizer) == len(SPECIAL_TOKENS) + len(vocabulary())
    assert model.lm_head.weight is model.get_input_embeddings().weight


def test_drawing_weights_leaves_the_callers_random_numbers_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    prepare_base_policy(TINY.model_copy(update={"pretrain_steps": 0}), tmp_path / "out", 0)
    assert torch.equal(torch.rand(3), expected)


def test_the_tokenizer_starts_prompts_and_knows_every_word():
    tokenizer = tiny_tokenizer()
    ids = tokenizer("Ana has 9 cards")["input_ids"]
    assert ids[0] == tokenizer.bos_token_id and tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Ana has 9 cards"
    assert tokenizer.convert_tokens_to_ids(vocabulary()) == list(range(4, 4 + len(vocabulary())))


def test_demonstrations_become_a_mix_of_positives_that_ends_in_eos():
    tokenizer = tiny_tokenizer()
    mix = MIX.conform(
        demonstration_mix([("Ana has 2", "The answer is 3"), ("Ben", ".")], tokenizer)
    )
    assert mix["advantage"].to_list() == [1.0, 1.0]
    assert mix["logprobs"].null_count() == 2
    assert tokenizer.decode(mix["token_ids"][0].to_list()) == "The answer is 3 <eos>"
    assert tokenizer.decode(mix["prompt_token_ids"][0].to_list()) == "<bos> Ana has 2"


def test_a_folder_is_saved_anew_with_the_same_weights(start, tmp_path):
    policy = FolderPolicy(source="folder", path=str(start))
    assert prepare_base_policy(policy, tmp_path / "out", 0) is None
    assert content_hash(tmp_path / "out") == content_hash(start)


def test_facts_are_read_off_the_folder(start):
    assert describe(start) == {
        "architecture": "LlamaForCausalLM",
        "parameters": 2 * 30 * 16 + 4 * 16 * 16 + 3 * 16 * 32 + 3 * 16,
        "dtype": "F32",
        "vocabulary": 30,
        "bytes": (start / "model.safetensors").stat().st_size,
    }


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no config.json"),
        ({"config.json": "{}"}, r"no \*.safetensors"),
        ({"config.json": "{}", "pytorch_model.bin": "x"}, r"no \*.safetensors"),
        ({"config.json": "{}", "model.safetensors": "no weights"}, "cannot be read"),
        ({"config.json": "{"}, r"no \*.safetensors"),
    ],
)
def test_a_folder_that_is_no_policy_is_refused(tmp_path, files, said):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ToprError, match=said) as error:
        prepare_base_policy(FolderPolicy(source="folder", path=str(tmp_path)), tmp_path / "out", 0)
    assert str(tmp_path) in str(error.value) and "Hugging Face format" in str(error.value)


def test_importing_the_room_does_not_import_torch():
    code = "import topr_pipeline.checkpoints, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
