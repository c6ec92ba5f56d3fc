import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from topr_pipeline.solutions.tokenize import cut_at_stop, prompt_tokens, trusts_remote_code

IDS = {"<bos>": 0, "<eos>": 1, "<turn>": 2, "what": 3, "user": 4, "<unk>": 5}


def tokenizer(adds_bos: bool) -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel(IDS, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyrefly: ignore
    if adds_bos:
        words.post_processor = processors.TemplateProcessing(  # pyrefly: ignore
            single="<bos> $A", special_tokens=[("<bos>", 0)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<turn>"],
    )


@pytest.mark.parametrize(
    ("adds_bos", "prompt", "ids"),
    [
        (True, "what", [0, 3]),
        (True, "<bos> <turn> user what", [0, 2, 4, 3]),
        (True, "<bos><turn>user what", [0, 2, 4, 3]),
        (True, "<turn> user what", [2, 4, 3]),
        (True, "what <bos>", [0, 3, 0]),
        (False, "what", [3]),
        (False, "<bos> what", [0, 3]),
    ],
)
def test_a_prompt_that_begins_with_a_special_token_gets_no_second_one(adds_bos, prompt, ids):
    assert prompt_tokens(tokenizer(adds_bos), prompt) == ids


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("one\n\ntwo", ["\n\n"], "one"),
        ("one Q: two\n", ["\n", "Q:"], "one "),
        ("one", ["\n"], None),
        ("\none", ["\n"], ""),
        ("one", [], None),
    ],
)
def test_text_is_cut_before_the_first_stop_string(text, stop, expected):
    assert cut_at_stop(text, stop) == expected


@pytest.mark.parametrize(
    ("config", "trusted"),
    [({}, False), ({"topr_trust_remote_code": True}, True), ({"topr_trust_remote_code": 1}, False)],
)
def test_code_of_a_policy_is_trusted_only_where_its_config_says_so(tmp_path, config, trusted):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert trusts_remote_code(tmp_path) is trusted
