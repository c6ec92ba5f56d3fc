"""Equality of two LaTeX answers by math-verify. Slow, may hang: for a worker process only."""

import logging
import re
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from topr_pipeline.rewards import latex, markup

_NUMBER = re.compile(r"\d+")
_DEGREE = re.compile("°")


def equal(answer: str, gold: str) -> bool | str:
    """Are the two equal: by `latex.compare`, else to math-verify, without its alarm?

    `unverifiable` for a gold that math-verify cannot read, unless the numbers in the two differ,
    and for values that it finds equal only one way round. Errors of math-verify propagate.
    """
    decided = latex.compare(gold, answer)
    if decided is not None:
        return decided
    wanted, found = _parsed(_latex(gold)), _parsed(_latex(answer))
    if not wanted:
        same_numbers = _NUMBER.findall(_latex(gold)) == _NUMBER.findall(_latex(answer))
        return "unverifiable" if same_numbers else False
    equal = bool(found) and _verified(wanted, found)
    if equal and _expressions(wanted + found) and not _verified(found, wanted):
        return "unverifiable"
    return equal


def _expressions(parsed: list[Any]) -> bool:
    """Are these values, whose equality has no direction? That of equations has, to math-verify."""
    from sympy import Expr

    return all(isinstance(item, Expr) for item in parsed)


def _verified(wanted: list[Any], found: list[Any]) -> bool:
    return _library().verify(wanted, found, timeout_seconds=None, raise_on_error=True)


def _library() -> Any:
    """math-verify, of which no `except Exception` takes an exhausted memory for "not equal"."""
    library = _loaded()
    # At each call, for sympy imports modules with exceptions of their own when it needs them.
    others = tuple(kind for kind in Exception.__subclasses__() if kind is not MemoryError)
    library.grader.Exception = library.parser.Exception = others
    return library


@lru_cache(maxsize=1)
def _loaded() -> Any:
    import math_verify
    from math_verify import parser

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    parser.latex2sympy = _of_its_own_kind(parser.latex2sympy)  # type: ignore[attr-defined]
    return math_verify


def _of_its_own_kind(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, but where it raises a bare `Exception`, which all others are, a ValueError."""

    def called(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except Exception as error:
            if type(error) is Exception:
                raise ValueError(str(error)) from error
            raise

    return called


def prepare() -> None:
    """Pay for the imports, and math-verify's patterns, before the first pair's clock starts."""
    parsed = _parsed("x+1")
    _verified(parsed, parsed)


equal.prepare = prepare  # type: ignore[attr-defined]


def math_verify_version() -> str:
    """The installed version, part of the verifier's."""
    return version("math-verify")


@lru_cache(maxsize=256)
def _parsed(latex: str) -> list[Any]:
    config = (_library().LatexExtractionConfig(boxed_match_priority=0),)
    boxed = f"$\\boxed{{{latex}}}$"
    return _library().parse(
        boxed, config, fallback_mode="no_fallback", parsing_timeout=0, raise_on_error=True
    )


def _latex(text: str) -> str:
    """The tidy text as LaTeX; a degree inside an expression is pi/180."""
    text = markup.tidy(text).replace("¶", "\\\\").replace("«", "\\text{").replace("»", "}")
    text = text.replace(markup.LIST_COMMA, ",")
    return _DEGREE.sub(r"\\cdot\\frac{\\pi}{180}", text.removesuffix("°"))
