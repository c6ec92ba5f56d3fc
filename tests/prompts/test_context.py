import polars as pl
import pytest

from topr_pipeline.errors import ToprError
from topr_pipeline.prompts import check_context
from topr_pipeline.tables import PROMPTS


def table(*prompts: str) -> pl.DataFrame:
    rows = [
        {"prompt_id": str(i), "prompt": p, "gold": "1", "source": f"set.csv:{i}", "split": "train"}
        for i, p in enumerate(prompts, 1)
    ]
    return PROMPTS.conform(pl.DataFrame(rows).with_columns(meta=pl.lit("{}")))


def words(prompt: str) -> int:
    return len(prompt.split())


def check(*prompts: str, max_tokens: int = 90, context: int = 100, count=words) -> None:
    keys = ("sampling.max_tokens", context, "policy")
    check_context(table(*prompts), "prompts", max_tokens, *keys, count)


def test_prompts_that_fit_to_the_token_pass():
    check("word " * 10, "short")


def test_prompts_that_are_too_long_are_counted_and_named_with_file_row_and_tokens():
    with pytest.raises(ToprError, match="2 of 3 prompts are too long") as error:
        check("word " * 10, "word " * 11, "word " * 400)
    said = str(error.value)
    assert "set.csv:2: 11 tokens\n  set.csv:3: 400 tokens" in said
    assert "90 new tokens (sampling.max_tokens) at most 10" in said
    assert "context of 100 (policy)" in said


@pytest.mark.parametrize("max_tokens", [100, 101])
def test_no_room_for_any_prompt_is_said_with_both_keys(max_tokens):
    with pytest.raises(ToprError, match=r"sampling.max_tokens: 10\d new .* context of 100 "):
        check("a", max_tokens=max_tokens)


def test_short_prompts_are_not_tokenised():
    def refuse(prompt: str) -> int:
        raise AssertionError(prompt)

    check("a" * 500, max_tokens=492, context=1000, count=refuse)
