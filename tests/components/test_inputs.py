"""What is wrong with prompts, template or policy is said before any model is loaded."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

from topr_pipeline.components.graph import unroll
from topr_pipeline.components.stages import check_inputs
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Experiment

CHAT = "{% for m in messages %}<turn> {{ m['role'] }} {{ m['content'] }} {% endfor %}<turn>"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with two prompt files and a policy of 40 tokens context, without weights."""
    for name, numbers in (("train", range(4)), ("eval", range(10, 12))):
        rows = [{"prompt": f"{n} + 1 =", "gold": n + 1} for n in numbers]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    words = Tokenizer(models.WordLevel({"<turn>": 0, "<unk>": 1}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyrefly: ignore
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", additional_special_tokens=["<turn>"]
    )
    tokenizer.save_pretrained(tmp_path / "policy")
    LlamaConfig(max_position_embeddings=40).save_pretrained(tmp_path / "policy")
    return tmp_path


def experiment(**changes: Any) -> Experiment:
    said = {
        "iterations": 1,
        "policy": {"source": "folder", "path": "policy"},
        "prompts": {"source": "files", "path": "train.jsonl"},
        "eval_prompts": {"source": "files", "path": "eval.jsonl"},
        "sampling": {"max_tokens": 32},
    }
    return Experiment.model_validate({**said, **changes})


def test_prompts_are_put_into_the_template(root):
    template = {"text": "Q: {prompt} A:", "examples": [{"prompt": "7 + 1 =", "answer": "8"}]}
    train, held_out = check_inputs(experiment(template=template, sampling={"max_tokens": 8}), root)
    assert train["prompt"][0] == "Q: 7 + 1 = A: 8\n\nQ: 0 + 1 = A:"
    assert held_out["prompt"][0] == "Q: 7 + 1 = A: 8\n\nQ: 10 + 1 = A:"


def test_chat_turns_are_rendered_by_the_policys_template(root):
    (root / "policy" / "chat_template.jinja").write_text(CHAT)
    template = {"chat": True, "system": "Add."}
    train, _ = check_inputs(experiment(template=template, sampling={"max_tokens": 8}), root)
    assert train["prompt"][0] == "<turn> system Add. <turn> user 0 + 1 = <turn>"


REFUSED = [
    ({"template": {"chat": True}}, r"no chat template; template.chat"),
    ({"template": {"examples": "none.jsonl"}}, r"'none.jsonl' is not there \(template.examples\)"),
    (
        {"template": {"examples": [{"prompt": "10 + 1 =", "answer": "11"}]}},
        r"template.examples\) is also an eval prompt \(eval.jsonl:1\)",
    ),
    ({"sampling": {"max_tokens": 40}}, r"sampling.max_tokens: 40 .*context of 40"),
    ({"evaluation": {"max_tokens": 50}}, r"evaluation.max_tokens: 50 .*context of 40"),
    (
        {"template": {"text": "a b c d e {prompt}"}},
        r"(?s)4 of 4 prompts are too long:\n  train.jsonl:1: 9 tokens.*at most 8",
    ),
    (
        {"evaluation": {"max_tokens": 37}},
        r"(?s)2 of 2 eval_prompts .*eval.jsonl:1: 4 tokens.*evaluation.max_tokens",
    ),
    ({"policy": {"source": "folder", "path": "none"}}, r"none is not there"),
    ({"policy": {"source": "gguf", "path": "none.gguf"}}, r"none.gguf is not there"),
    ({"prompts": {"source": "files", "path": "eval.jsonl"}}, r"2 of 2 eval_prompts are also in"),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED, ids=[str(r[0])[:70] for r in REFUSED])
def test_what_cannot_work_is_refused_with_its_key(root, changes, said):
    with pytest.raises(ToprError, match=said):
        check_inputs(experiment(**changes), root)


def test_prompts_that_fit_the_tiny_policy_pass_and_longer_ones_do_not(root):
    tiny = {"source": "tiny"}
    check_inputs(experiment(policy=tiny, sampling={"max_tokens": 123}), root)
    with pytest.raises(ToprError, match="4 of 4 prompts are too long"):
        check_inputs(experiment(policy=tiny, sampling={"max_tokens": 124}), root)


def test_the_context_that_vllm_is_given_counts_for_vllm_alone(root):
    sampling = {"engine": "vllm", "max_tokens": 8, "vllm": {"max_model_len": 11}}
    with pytest.raises(ToprError, match=r"of 11 \(sampling\.vllm\.max_model_len\)"):
        check_inputs(experiment(sampling=sampling), root)
    check_inputs(experiment(sampling={**sampling, "vllm": {"max_model_len": 12}}), root)
    check_inputs(experiment(sampling={**sampling, "engine": "transformers"}), root)


def test_the_fake_engine_has_no_context(root):
    check_inputs(experiment(sampling={"engine": "fake", "max_tokens": 512}), root)


def test_training_prompts_among_the_eval_prompts_are_dropped_where_the_yaml_says_so(root):
    shutil.copy(root / "eval.jsonl", root / "both.jsonl")
    (root / "both.jsonl").open("a").write('{"prompt": "3 + 3 =", "gold": 6}\n')
    both = {"source": "files", "path": "both.jsonl", "doubtful": "drop"}
    assert check_inputs(experiment(prompts=both), root)[0]["prompt"].to_list() == ["3 + 3 ="]


def versions(e: Experiment, root: Path) -> tuple[str, ...]:
    nodes = unroll("toy", e, root)
    keys = ("toy/prompts", "toy/eval_prompts", "toy/iter_00/checkpoint")
    return tuple(nodes[key].code_version for key in keys)


SHOTS = {"examples": "shots.jsonl"}
TOUCHED = [
    ({}, "train.jsonl", (True, False, False)),
    ({}, "policy/config.json", (False, False, True)),
    ({"template": {"chat": True}}, "policy/config.json", (True, True, True)),
    ({"template": SHOTS}, "shots.jsonl", (True, True, False)),
    (
        {"prompts": {"source": "files", "path": "train.jsonl", "doubtful": "drop"}},
        "eval.jsonl",
        (True, True, False),
    ),
    ({"policy": {"source": "gguf", "path": "a.gguf"}}, "a.gguf", (False, False, True)),
    ({"prompts": {"source": "files", "path": "*.csv"}}, "new.csv", (True, False, False)),
]


@pytest.mark.parametrize(("changes", "file", "stale"), TOUCHED, ids=[t[1] for t in TOUCHED])
def test_an_edited_file_makes_stale_what_is_made_from_it(root, changes, file, stale):
    e = experiment(**changes)
    before = versions(e, root)
    with (root / file).open("a") as stream:
        stream.write(" ")
    after = versions(e, root)
    assert tuple(a != b for a, b in zip(before, after, strict=True)) == stale


def test_another_template_makes_both_prompt_sets_stale(root):
    before, after = (
        versions(experiment(), root),
        versions(experiment(template={"text": "{prompt}?"}), root),
    )
    assert [a != b for a, b in zip(before, after, strict=True)] == [True, True, False]
