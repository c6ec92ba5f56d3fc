"""How every engine reads a prompt, where a completion stops, and whether a policy's code may run.

Pure functions, shared so that engines agree token by token.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TRUSTED = "topr_trust_remote_code"
"""Key in `config.json` of a policy whose YAML says `trust_remote_code: true`. Training keeps it."""


def prompt_tokens(tokenizer: Any, prompt: str) -> list[int]:
    """The prompt's token ids, with the tokenizer's default special tokens unless it has its own.

    A rendered chat template begins with a special token (BOS for Llama 3), written out. A tokenizer
    that adds BOS by itself would put a second one before it, which the policy has never seen.
    """
    complete = prompt.startswith(tuple(tokenizer.all_special_tokens))
    return tokenizer(prompt, add_special_tokens=not complete)["input_ids"]


def cut_at_stop(text: str, stop: Sequence[str]) -> str | None:
    """`text` up to the first of the `stop` strings, None when it has none of them.

    A completion ends with the token that completes a stop string: this token and all before it are
    kept in `token_ids`, with their log-probs, and trained on; `text` is cut before the string.

    >>> cut_at_stop("The answer is 3.\\n\\nQuestion: Ben", ["\\n\\n"])
    'The answer is 3.'
    """
    found = [at for s in stop if (at := text.find(s)) >= 0]
    return text[: min(found)] if found else None


def trusts_remote_code(policy: Path) -> bool:
    """Whether Python code in the policy's folder may run, as the YAML said when it was prepared."""
    return json.loads((policy / "config.json").read_text()).get(TRUSTED) is True
