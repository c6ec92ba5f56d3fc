import json
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open

from topr_pipeline.checkpoints import describe, prepare_base_policy
from topr_pipeline.checkpoints.base import SPECIAL_TOKENS, demonstration_mix, tiny_tokenizer
from topr_pipeline.checkpoints.folders import load, save
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import FolderPolicy, GgufPolicy, HubPolicy, TinyPolicy
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
    origin = json.loads((tmp_path / "out" / "origin.json").read_text())
    assert origin == {"source": "folder", "sha256": content_hash(start)}
    (tmp_path / "out" / "origin.json").unlink()
    assert content_hash(tmp_path / "out") == content_hash(start)


def dtypes(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", framework="np") as tensors:
        return {tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118


@pytest.mark.parametrize(("dtype", "saved"), [(None, "F32"), ("bfloat16", "BF16")])
def test_weights_are_saved_in_the_dtype_of_the_yaml(start, tmp_path, dtype, saved):
    policy = FolderPolicy(source="folder", path=str(start), dtype=dtype)
    prepare_base_policy(policy, tmp_path / "out", 0)
    assert dtypes(tmp_path / "out") == {saved}


def test_the_licence_of_a_model_card_is_kept_and_shown(start, tmp_path):
    shutil.copytree(start, tmp_path / "in")
    (tmp_path / "in" / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A model\n")
    policy = FolderPolicy(source="folder", path=str(tmp_path / "in"))
    prepare_base_policy(policy, tmp_path / "out", 0)
    facts = describe(tmp_path / "out")
    assert facts["license"] == "apache-2.0"
    assert facts["sha256"] == content_hash(tmp_path / "in")


def test_a_policy_without_a_padding_token_stays_without_one(start, tmp_path):
    model, tokenizer = load(start, "auto")
    tokenizer.pad_token = None
    model.config.pad_token_id = None
    save(model, tokenizer, tmp_path / "in")
    prepare_base_policy(
        FolderPolicy(source="folder", path=str(tmp_path / "in")), tmp_path / "out", 0
    )
    assert load(tmp_path / "out", "auto")[1].pad_token is None


def write_gguf(path: Path) -> np.ndarray:
    """A Llama of one layer with a byte-level vocabulary; returns its input embeddings."""
    writer = gguf.GGUFWriter(path, "llama")
    rng = np.random.default_rng(0)
    tokens = ["<s>", "</s>", "a", "b", "c", "ab"]
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_license("mit")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    shapes = {"token_embd.weight": (6, 32), "output_norm.weight": (32,)}
    shapes |= {f"blk.0.attn_{name}.weight": (32, 32) for name in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{name}.weight": (32, 32) for name in ("gate", "up", "down")}
    shapes |= {f"blk.0.{name}_norm.weight": (32,) for name in ("attn", "ffn")}
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, weight in weights.items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights["token_embd.weight"]


def test_a_gguf_file_is_saved_as_plain_safetensors(tmp_path):
    embeddings = write_gguf(tmp_path / "toy.gguf")
    policy = GgufPolicy(source="gguf", path=str(tmp_path / "toy.gguf"))
    assert prepare_base_policy(policy, tmp_path / "out", 0) is None
    model, tokenizer = load(tmp_path / "out", "auto")
    assert dtypes(tmp_path / "out") == {"F32"}
    saved = model.state_dict()["model.embed_tokens.weight"].numpy()
    assert np.array_equal(saved, embeddings)
    assert model.config.max_position_embeddings == 64
    assert tokenizer.convert_ids_to_tokens(tokenizer("abc")["input_ids"]) == ["ab", "c"]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "quantization_config" not in config
    origin = json.loads((tmp_path / "out" / "origin.json").read_text())
    assert origin["file"] == "toy.gguf" and origin["license"] == "mit"
    assert len(origin["sha256"]) == 64


MODEL_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class MyConfig(LlamaConfig):
    model_type = "my_model"

class MyModel(LlamaForCausalLM):
    config_class = MyConfig
"""


@pytest.fixture
def with_code(start, tmp_path, monkeypatch) -> Path:
    """The tiny Llama as a model of its own code."""
    modules = str(tmp_path / "modules")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", modules)
    monkeypatch.setattr(sys, "path", [*sys.path])  # transformers puts the modules there
    shutil.copytree(start, tmp_path / "in")
    (tmp_path / "in" / "my_code.py").write_text(MODEL_CODE)
    config = json.loads((start / "config.json").read_text())
    config["model_type"] = "my_model"
    config["architectures"] = ["MyModel"]
    names = {"AutoConfig": "MyConfig", "AutoModelForCausalLM": "MyModel"}
    config["auto_map"] = {auto: f"my_code.{name}" for auto, name in names.items()}
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    return tmp_path / "in"


def test_a_policys_own_code_runs_only_where_the_yaml_says_so(with_code, tmp_path):
    policy = FolderPolicy(source="folder", path=str(with_code))
    with pytest.raises(ToprError, match="trust_remote_code"):
        prepare_base_policy(policy, tmp_path / "out", 0)
    assert not (tmp_path / "out").exists()


def test_consent_to_a_policys_code_holds_for_the_checkpoints_made_from_it(with_code, tmp_path):
    policy = FolderPolicy(source="folder", path=str(with_code), trust_remote_code=True)
    prepare_base_policy(policy, tmp_path / "out", 0)
    save(*load(tmp_path / "out", "float32"), tmp_path / "trained")
    assert type(load(tmp_path / "trained", "float32")[0]).__name__ == "MyModel"


def test_a_hub_model_is_loaded_by_id_and_revision_and_its_commit_kept(start, tmp_path, monkeypatch):
    asked = []

    def from_pretrained(name: str, dtype: str, **options: object):
        asked.append((name, dtype, options))
        model, tokenizer = load(start, "auto")
        model.config._commit_hash = "abc123"
        return model, tokenizer

    def no_card(*_: object, **__: object):
        raise OSError("not in the cache")

    monkeypatch.setattr("topr_pipeline.checkpoints.base.from_pretrained", from_pretrained)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", no_card)
    policy = HubPolicy(source="hub", id="my/model", revision="v1", dtype="bfloat16")
    prepare_base_policy(policy, tmp_path / "out", 0)
    assert asked == [("my/model", "bfloat16", {"revision": "v1", "trust_remote_code": False})]
    origin = json.loads((tmp_path / "out" / "origin.json").read_text())
    assert origin == {"source": "hub", "id": "my/model", "revision": "v1", "commit": "abc123"}


def test_a_hub_model_out_of_reach_is_a_clear_error(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ToprError, match=r"'my/model' \(policy.id, revision 'main'") as error:
        prepare_base_policy(HubPolicy(source="hub", id="my/model"), tmp_path / "out", 0)
    assert "HF_TOKEN" in str(error.value)


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
