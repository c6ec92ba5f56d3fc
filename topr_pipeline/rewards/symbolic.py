"""Equality of two LaTeX answers by math-verify. Slow, may hang: for a worker process only."""

import logging
import re
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from topr_pipeline.rewards import markup

_DEGREE = re.compile("°")


def equal(answer: str, gold: str) -> bool:
    """Does math-verify, without its alarm, find the two equal? (It is not symmetric.)

    Raises MemoryError and RecursionError; any other error of math-verify means no.
    """
    from math_verify import verify

    wanted, found = _parsed(_latex(gold)), _parsed(_latex(answer))
    try:
        return verify(wanted, found, timeout_seconds=None, raise_on_error=True)
    except (MemoryError, RecursionError):
        raise
    except Exception:
        return False


def prepare() -> None:
    """Pay for the imports, and math-verify's patterns, before the first pair's clock starts."""
    equal("x+1", "1+x")


equal.prepare = prepare  # type: ignore[attr-defined]


def math_verify_version() -> str:
    """The installed version, part of the verifier's."""
    return version("math-verify")


@lru_cache(maxsize=256)
def _parsed(latex: str) -> list[Any]:
    from math_verify import LatexExtractionConfig, parse

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    config = (LatexExtractionConfig(boxed_match_priority=0),)
    boxed = f"$\\boxed{{{latex}}}$"
    return parse(boxed, config, fallback_mode="no_fallback", parsing_timeout=0)


def _latex(text: str) -> str:
    """The tidy text as LaTeX; a degree inside an expression is pi/180."""
    text = markup.tidy(text).replace("¶", "\\\\").replace("«", "\\text{").replace("»", "}")
    return _DEGREE.sub(r"\\cdot\\frac{\\pi}{180}", text.removesuffix("°"))
