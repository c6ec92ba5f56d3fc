"""Solutions that are there already: what is read of a row, and which tokens become of it."""

from typing import Any

import polars as pl
import pytest

from topr_pipeline.checkpoints.base import tiny_tokenizer
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Columns, OfflineColumns
from topr_pipeline.prompts import prompt_id
from topr_pipeline.solutions import Encoder, encoded, read_offline

TOKENIZER = tiny_tokenizer()
EOS = TOKENIZER.eos_token_id
ALL = OfflineColumns(
    outcome="outcome",
    answer="answer",
    finish_reason="finish_reason",
    token_ids="token_ids",
    logprobs="logprobs",
)
NOTHING: dict[str, Any] = dict.fromkeys(
    ("reward", "outcome", "answer", "finish_reason", "token_ids", "logprobs")
)


def ids(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def read(*rows: dict[str, Any], columns: OfflineColumns = ALL) -> pl.DataFrame:
    said = {"prompt": "Ana has 2", "completion": "The answer is 3", **NOTHING}
    numbered = [(f"set.jsonl:{i}", {**said, **row}) for i, row in enumerate(rows, 1)]
    return read_offline(numbered, Columns(), columns)


def made(*rows: dict[str, Any], **of_encoder: Any) -> pl.DataFrame:
    found = read(*rows)
    prompts = pl.DataFrame({"prompt_id": [prompt_id("Ana has 2")], "prompt": ["Ana has 2"]})
    encoder = Encoder(TOKENIZER, frozenset({EOS}), **of_encoder)
    return pl.concat(encoded(found, prompts, encoder))


def test_rows_of_a_prompt_are_numbered_in_their_order():
    found = read({}, {"prompt": "Ben has 4"}, {"prompt": "ANA has 2."}, {})
    assert found["sample_index"].to_list() == [0, 0, 1, 2]
    assert found["prompt_id"].n_unique() == 2
    assert found["source"].to_list()[2] == "set.jsonl:3"


SAID = [
    ("reward", 1, 1.0),
    ("reward", "-0.5", -0.5),
    ("reward", "", None),
    ("outcome", "invalid", "invalid"),
    ("answer", 3, "3"),
    ("finish_reason", "length", "length"),
    ("token_ids", [5, 6], [5, 6]),
    ("token_ids", "[5, 6]", [5, 6]),
    ("logprobs", [-1, -0.5], [-1.0, -0.5]),
    ("logprobs", "", None),
]


@pytest.mark.parametrize(("column", "value", "expected"), SAID, ids=[str(s[:2]) for s in SAID])
def test_a_value_is_read_as_what_it_says(column, value, expected):
    assert read({column: value})[column].to_list() == [expected]


REFUSED = [
    ({"completion": None}, r"set.jsonl:1: the completion is null \(offline.columns.completion: co"),
    ({"completion": 3}, r"the completion is 3 .*give a text"),
    ({"prompt": ""}, r"set.jsonl:1: the prompt is \"\" \(prompts.columns.prompt"),
    ({"reward": "good"}, r'the reward is "good" .*a finite number'),
    ({"reward": True}, "the reward is true .*a finite number"),
    ({"reward": float("nan")}, "the reward is NaN"),
    ({"reward": [1]}, r"the reward is \[1\]"),
    ({"outcome": "right"}, "the outcome is .*one of correct, incorrect"),
    ({"outcome": "unverifiable", "reward": 1}, "the reward is 1 .*null for what is unverifiable"),
    ({"finish_reason": "eos"}, "the finish_reason is .*one of stop, length"),
    ({"token_ids": [1, -2]}, r"the token_ids is \[1, -2\] .*whole numbers"),
    ({"token_ids": []}, r"the token_ids is \[\]"),
    ({"token_ids": "1 2"}, "the token_ids is .*in JSON"),
    ({"token_ids": "7"}, "the token_ids is .*a list of token ids"),
    ({"token_ids": [2**31]}, "the token_ids is .*token ids"),
    ({"logprobs": [-1, 0.2]}, r"the logprobs is \[-1, 0.2\] .*not above 0"),
    ({"logprobs": [-1, None]}, "the logprobs is .*finite numbers"),
    ({"logprobs": [-1, float("-inf")]}, "the logprobs is .*finite numbers"),
    ({"token_ids": [5, 6], "logprobs": [-1]}, r"the logprobs is \[-1\] .*2 numbers, one per token"),
]


@pytest.mark.parametrize(("row", "said"), REFUSED, ids=[str(r[0]) for r in REFUSED])
def test_a_value_that_cannot_be_used_is_refused_with_its_row_and_key(row, said):
    with pytest.raises(ToprError, match=said):
        read(row)


def test_a_column_that_is_not_there_is_refused_with_the_nearest_name():
    columns = OfflineColumns(reward="rewrad")
    said = r"set.jsonl:1: no column 'rewrad' \(offline.columns.reward\).*did you mean 'reward'"
    with pytest.raises(ToprError, match=said):
        read({}, columns=columns)


TEXT = "The answer is 3"
BODY = ids(TEXT)
TOKENS = [
    ({}, [*BODY, EOS], "stop"),
    ({"finish_reason": "length"}, BODY, "length"),
    ({"finish_reason": "stop"}, [*BODY, EOS], "stop"),
    ({"completion": f"{TEXT} <eos>"}, [*BODY, EOS], "stop"),
    ({"completion": ""}, [EOS], "stop"),
    ({"token_ids": [*BODY, EOS]}, [*BODY, EOS], "stop"),
    ({"token_ids": BODY}, BODY, "length"),
    ({"token_ids": BODY, "finish_reason": "stop"}, BODY, "stop"),
    ({"completion": f" {TEXT}\n", "token_ids": [*BODY, EOS]}, [*BODY, EOS], "stop"),
]


@pytest.mark.parametrize(("row", "tokens", "reason"), TOKENS, ids=[str(t[0]) for t in TOKENS])
def test_a_complete_completion_ends_in_eos_and_given_tokens_are_kept(row, tokens, reason):
    found = made(row)
    assert found["token_ids"].to_list() == [tokens]
    assert found["finish_reason"].to_list() == [reason]
    assert found["prompt_token_ids"].to_list() == [TOKENIZER("Ana has 2")["input_ids"]]


def test_tokens_that_go_on_to_a_stop_string_say_the_text_before_it():
    tokens = ids(f"{TEXT} . How")
    found = made({"token_ids": tokens}, stop=(" . How",))
    assert found["token_ids"].to_list() == [tokens]
    assert found["finish_reason"].to_list() == ["stop"]


def test_given_log_probs_are_kept_and_summed_and_others_stay_unknown():
    logprobs = [-0.5] * len(BODY) + [-1.0]
    found = made({"logprobs": logprobs}, {})
    assert found["logprobs"].to_list() == [logprobs, None]
    assert found["logprob"].to_list() == [sum(logprobs), None]


def test_rows_of_other_prompts_are_left_out():
    assert made({"prompt": "Ben has 4"}, {}, {}).height == 2


UNFIT = [
    ({"token_ids": [*ids("The answer is 4"), EOS]}, {}, r"token_ids say .*4\" where the comp.*3"),
    ({"token_ids": [10**6]}, {}, "token_ids have an id beyond"),
    ({"logprobs": [-1.0] * len(BODY)}, {}, "logprobs are 4 for 5 tokens, EOS included"),
    ({"completion": "zwölf"}, {}, "completion has words that the policy's tokenizer does not know"),
    ({"completion": "", "finish_reason": "length"}, {}, "the completion has no token"),
    ({}, {"context": 8}, r"completion has 5 tokens and its prompt 4, more than .* context of 8"),
]


@pytest.mark.parametrize(("row", "of_encoder", "said"), UNFIT, ids=[u[2] for u in UNFIT])
def test_what_the_policy_cannot_be_trained_on_is_refused_with_its_row(row, of_encoder, said):
    with pytest.raises(ToprError, match=f"set.jsonl:2: the {said.removeprefix('the ')}"):
        made({"prompt": "Ben has 4"}, row, **of_encoder)


class OneWord:
    """Every text is token 1; `special` is EOS and what stands for the unknown."""

    all_special_tokens: tuple[str, ...] = ()

    def __init__(self, special: int | None):
        self.eos_token_id = self.unk_token_id = special

    def __call__(self, text: str | list[str], add_special_tokens: bool) -> dict[str, list]:
        return {"input_ids": [1] if isinstance(text, str) else [[1] for _ in text]}


def test_a_tokenizer_that_names_eos_for_what_it_does_not_know_knows_everything():
    prompts = pl.DataFrame({"prompt_id": [prompt_id("Ana has 2")], "prompt": ["Ana has 2"]})
    (found,) = encoded(read({}), prompts, Encoder(OneWord(9), frozenset({9})))
    assert found["token_ids"].to_list() == [[1, 9]]


def test_an_end_without_an_eos_token_is_refused():
    prompts = pl.DataFrame({"prompt_id": [prompt_id("Ana has 2")], "prompt": ["Ana has 2"]})
    with pytest.raises(ToprError, match="tokenizer has no EOS; give token_ids"):
        list(encoded(read({}), prompts, Encoder(OneWord(None), frozenset())))
