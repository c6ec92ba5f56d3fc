"""Prompts that leave no room for a completion in the policy's context."""

from collections.abc import Callable

import polars as pl

from topr_pipeline.errors import ToprError

_SPECIAL = 8
"""Special tokens that a tokenizer may add. Otherwise a token stands for a byte or more."""


def check_context(
    prompts: pl.DataFrame,
    key: str,
    max_tokens: int,
    max_tokens_key: str,
    context: int,
    context_key: str,
    count: Callable[[str], int],
) -> None:
    """Raise ToprError when a prompt and `max_tokens` new tokens exceed `context` tokens.

    `key` is the section of the prompts, `max_tokens_key` and `context_key` are the YAML keys of
    `max_tokens` and of what limits the context. `count` gives the tokens of a text; it is asked
    only for texts that are long enough to matter.
    """
    room = context - max_tokens
    if room < 1:
        raise ToprError(
            f"{max_tokens_key}: {max_tokens} new tokens leave no room for a prompt in the "
            f"context of {context} tokens ({context_key}); lower {max_tokens_key}"
        )
    doubtful = prompts.filter(pl.col("prompt").str.len_bytes() + _SPECIAL > room)
    lengths = [count(prompt) for prompt in doubtful["prompt"]]
    long = doubtful.with_columns(tokens=pl.Series(lengths, dtype=pl.Int64)).filter(
        pl.col("tokens") > room
    )
    if long.height:
        first = "".join(
            f"\n  {source}: {tokens} tokens"
            for source, tokens in long.select("source", "tokens").head(3).iter_rows()
        )
        raise ToprError(
            f"{long.height} of {prompts.height} {key} are too long:{first}\nwith {max_tokens} new "
            f"tokens ({max_tokens_key}) at most {room} of the context of {context} "
            f"({context_key}) are left for a prompt, template included; take them out of {key} or "
            f"lower {max_tokens_key}"
        )
