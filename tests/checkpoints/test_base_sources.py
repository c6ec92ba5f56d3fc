import json
import os
import shutil
from pathlib import Path

import pytest

from topr_pipeline.checkpoints import sources
from topr_pipeline.checkpoints.folders import load, save
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import FolderPolicy, GgufPolicy, HubPolicy, TinyPolicy

TINY = TinyPolicy(source="tiny")
HUB = HubPolicy(source="hub", id="my/model", revision="v1")
CHATML = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}w1 {{ m['role'] }} {{ m['content'] }} w2 {% endfor %}"
    "{% if add_generation_prompt %}w1 assistant{% endif %}"
)


@pytest.fixture
def folder(start: Path, tmp_path: Path) -> Path:
    """A policy's folder without its weights: nothing here may need them."""
    shutil.copytree(start, tmp_path / "policy")
    (tmp_path / "policy" / "model.safetensors").unlink()
    return tmp_path / "policy"


@pytest.fixture
def policy(folder: Path) -> FolderPolicy:
    return FolderPolicy(source="folder", path="policy")


def test_context_and_tokens_are_known_before_the_weights_are_loaded(policy, tmp_path):
    assert sources.context_of(policy, tmp_path) == 64
    assert sources.token_counter(policy, tmp_path)("w4 w5 w6") == 3


def test_the_tiny_policy_counts_words_and_its_bos():
    assert sources.context_of(TINY, Path("nowhere")) == 128
    assert sources.token_counter(TINY, Path("nowhere"))("Ana has 9 cards .") == 6


def test_a_changed_folder_is_read_anew(policy, folder, tmp_path):
    assert sources.context_of(policy, tmp_path) == 64
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 32}
    (folder / "config.json").write_text(json.dumps(config))
    os.utime(folder / "config.json", ns=(1, 2**62))
    assert sources.context_of(policy, tmp_path) == 32


def test_messages_are_rendered_up_to_the_assistants_turn(policy, folder, tmp_path):
    (folder / "chat_template.jinja").write_text(CHATML)
    chat = sources.chat_of(policy, tmp_path)
    turns = [{"role": "user", "content": "w4"}]
    assert chat(turns) == "w1 user w4 w2 w1 assistant"


def test_turns_that_the_chat_template_refuses_are_a_clear_error(policy, folder, tmp_path):
    (folder / "chat_template.jinja").write_text(CHATML)
    chat = sources.chat_of(policy, tmp_path)
    with pytest.raises(ToprError, match=r"refuses turns of system, user: no system; template"):
        chat([{"role": "system", "content": "w4"}, {"role": "user", "content": "w5"}])


@pytest.mark.parametrize("which", ["folder", "tiny"])
def test_a_policy_without_a_chat_template_is_a_clear_error(policy, tmp_path, which):
    chosen = policy if which == "folder" else TINY
    with pytest.raises(ToprError, match=r"no chat template; template.chat; give template.chat: fa"):
        sources.chat_of(chosen, tmp_path)


def test_a_folder_without_a_tokenizer_is_a_clear_error(policy, folder, tmp_path):
    for file in folder.glob("tokenizer*"):
        file.unlink()
    count = sources.token_counter(policy, tmp_path)
    with pytest.raises(ToprError, match=r"policy \(policy.path\) cannot be loaded"):
        count("w4")


def test_a_hub_model_out_of_reach_is_a_clear_error(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    sources.check_there(HUB, tmp_path)
    with pytest.raises(ToprError, match=r"'my/model' \(policy.id, revision 'v1'; without a netw"):
        sources.context_of(HUB, tmp_path)


THERE = [
    ("folder", "nothing", r"policy.path: .*/nothing is not there"),
    ("gguf", "toy.gguf", r"policy.path: .*/toy.gguf is not there; beside it: other.gguf"),
    ("gguf", "deep/toy.gguf", r"toy.gguf is not there; beside it: no GGUF file"),
    ("gguf", "package:no_such_package/a.gguf", r"package that is not installed; install it"),
    ("gguf", "package:no such/a.gguf", r"package that is not installed"),
    ("gguf", "package:topr_pipeline/a.gguf", r"topr_pipeline/a.gguf is not there"),
]


@pytest.mark.parametrize(("source", "path", "said"), THERE, ids=[t[1] for t in THERE])
def test_a_policy_that_is_not_there_is_a_clear_error(tmp_path, source, path, said):
    (tmp_path / "other.gguf").touch()
    kind = {"folder": FolderPolicy, "gguf": GgufPolicy}[source]
    with pytest.raises(ToprError, match=said):
        sources.check_there(kind(source=source, path=path), tmp_path)


def test_a_gguf_file_is_found_in_a_package_without_importing_it(tmp_path, monkeypatch):
    (tmp_path / "my_models").mkdir()
    (tmp_path / "my_models" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "my_models" / "toy.gguf").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    policy = GgufPolicy(source="gguf", path="package:my_models/toy.gguf")
    found = tmp_path / "my_models" / "toy.gguf"
    assert sources.located_gguf(policy, Path("nowhere")) == found
    assert sources.absolute(policy, Path("nowhere")) == GgufPolicy(source="gguf", path=str(found))


def test_paths_become_absolute_and_other_policies_stay(policy, tmp_path):
    wanted = policy.model_copy(update={"path": str(tmp_path / "policy")})
    assert sources.absolute(policy, tmp_path) == wanted
    for other in (TINY, HUB):
        assert sources.absolute(other, tmp_path) is other


def test_the_context_is_none_where_the_policy_does_not_say(start, tmp_path):
    model, tokenizer = load(start, "auto")
    save(model, tokenizer, tmp_path / "policy")
    config = json.loads((tmp_path / "policy" / "config.json").read_text())
    config = {"model_type": "mamba", "architectures": ["MambaForCausalLM"]}
    (tmp_path / "policy" / "config.json").write_text(json.dumps(config))
    assert sources.context_of(FolderPolicy(source="folder", path="policy"), tmp_path) is None
