"""Values of prompt files as text, and how they are shown in messages."""

import difflib
import json
import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

Record = dict[str, Any]


def gold_text(value: Any) -> str | None:
    """A gold as text, or None for what is no gold: null, true, NaN, blank text, a list, an object.

    >>> [gold_text(v) for v in ("18", 18, 18.0, 1e3, 0.5, True)]
    ['18', '18', '18', '1000', '0.5', None]
    """
    match value:
        case bool():
            return None
        case str():
            return value.strip() or None
        case int():
            return str(value)
        case float() | Decimal() if math.isfinite(value):
            # The shortest decimal that reads back as this float, without exponent; + 0: -0 is 0.
            exact = value if isinstance(value, Decimal) else Decimal(repr(value))
            return format(exact.normalize() + 0, "f")
    return None


def after_hashes(gold: str) -> str | None:
    """The answer in a GSM8K solution, what follows its last `####`; None when nothing does.

    >>> after_hashes("Ana has 2 * 9 = <<2*9=18>>18 cards.\\n#### 18")
    '18'
    """
    _, marker, answer = gold.rpartition("####")
    return (answer.strip() or None) if marker else None


def shown(value: Any) -> str:
    """A value as JSON, cut to a length that fits a message."""
    text = as_json(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def as_json(value: Any) -> str:
    """JSON, with text for what JSON does not know: dates and decimals of a Parquet file."""
    return json.dumps(value, ensure_ascii=False, default=str)


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest of `known`, or nothing."""
    near = difflib.get_close_matches(wrong, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""
