"""Equality of two answers that are one value each: numbers, words, bases, degrees, expressions."""

import re
from fractions import Fraction
from functools import lru_cache

from topr_pipeline.rewards import expression, numbers, units
from topr_pipeline.rewards.fields import Imprecise, Oversized, Unsupported, precise
from topr_pipeline.rewards.markup import tokens

MAX_TOKENS = 1500

_FRACTION = re.compile(
    r"([+-]?)(\d*)\s?\\frac\{([+-]?\d+(?:\.\d+)?)\}\{([+-]?\d+(?:\.\d+)?)\}(%)?°?"
)
_REPEATING = re.compile(r"([+-]?)(\d*)\.(\d{0,40})\\overline\{(\d{1,40})\}")
_SCIENTIFIC = re.compile(r"([+-]?\d+(?:\.\d+)?)\\cdot\s?10\^\{([+-]?\d{1,3})\}(%)?")
_BASE = re.compile(r"\(?([0-9A-Fa-f]*\d[0-9A-Fa-f]*)\)?_\{?(\d{1,2})\}?")
_GARBAGE = re.compile(r"[^\x00-\x7f°]|(?<![\\A-Za-z])[A-Za-z]{4,}")
_GROUPED = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d{1,2}(?:,\d\d)+,\d{3})(?:\.\d+)?[%°]?")
_PRIMES = re.compile(r"(?<=[A-Za-z)}'])'")
_SIGN_WORD = re.compile(r"«(?:minus|negative)»(?=[\d.\\])", re.IGNORECASE)
_TIME = re.compile(r"\d{1,2}:\d\d")
_INFINITE = ("\\infty", "+\\infty", "-\\infty")
_WORDS = re.compile(r"«([^»]*)»|([A-Za-z][A-Za-z' .-]+)|\(?([A-Z])\)?")


def same(gold: str, answer: str) -> bool | None:
    """True or False where certain, None where it takes symbolic work. Both texts are tidy."""
    gold, answer = _SIGN_WORD.sub("-", gold), _SIGN_WORD.sub("-", answer)
    if _apart(gold, answer) or (bare := units.compare(gold, answer)) is None:
        return False
    gold, answer = map(units.bare, bare)
    if gold == answer:
        return True
    if _TIME.fullmatch(gold) and _TIME.fullmatch(answer):
        return gold.lstrip("0") == answer.lstrip("0")
    if gold in _INFINITE or answer in _INFINITE:
        return gold.removeprefix("+") == answer.removeprefix("+")
    if "_" in gold or "_" in answer:
        based = _same_base(gold, answer)
        if based is not None:
            return based
    left, right = value(gold), value(answer)
    if left is not None and right is not None:
        if (parts := grouped(gold)) and (other := grouped(answer)) and set(parts) == set(other):
            return True
        return numbers.same(left, right)
    said = words(gold), words(answer)
    if said[0] and said[1] and not _reordered(gold, answer):
        return said[0] == said[1]
    if (said[0] and right is not None) or (said[1] and left is not None):
        return False
    if _GARBAGE.search(answer) and not _GARBAGE.search(gold):
        return False
    return _same_expressions(gold, answer)


def _apart(gold: str, answer: str) -> bool:
    """Do words, signs or primes tell the two apart, whatever math-verify makes of them?"""
    if units.denied(gold) != units.denied(answer) or {gold[-1:], answer[-1:]} == {"%", "°"}:
        return True
    if ("\\ldots" in gold) != ("\\ldots" in answer):
        return True
    return len(_PRIMES.findall(gold)) != len(_PRIMES.findall(answer))


def grouped(text: str) -> list[str] | None:
    """The parts of what is either one number with thousands separators or a list: `101,103`."""
    text = units.bare(text)
    return text.split(",") if _GROUPED.fullmatch(text) else None


@lru_cache(maxsize=1 << 13)
def value(text: str) -> numbers.Quantity | None:
    """The exact number that a tidy text is, with mixed numbers, degrees and powers of ten."""
    if match := _FRACTION.fullmatch(text):
        sign, whole, top, bottom, percent = match.groups()
        if whole and ("-" in top + bottom or "." in top + bottom):
            return None
        sign = "-" if (sign + top).count("-") == 1 else ""
        return numbers.quantity(f"{sign}{whole} {top.lstrip('+-')}/{bottom}{percent or ''}")
    if match := _SCIENTIFIC.fullmatch(text):
        return numbers.quantity(f"{match[1]}e{match[2]}{match[3] or ''}")
    if text[-1:] in ("k", "K"):  # no word in mathematics, but a variable
        return None
    text = text.removesuffix("°")
    if match := _REPEATING.fullmatch(text):
        sign, whole, fixed, period = match.groups()
        number = Fraction(int(period), 10 ** len(period) - 1) + int(fixed or 0)
        number = number / 10 ** len(fixed) + int(whole or 0)
        return numbers.Quantity(-number if sign == "-" else number)
    return None if "," in text and not grouped(text) else numbers.quantity(text)


def words(text: str) -> str | None:
    """The words of an answer such as `«(C)»`, `odd` or `C`, for comparison; None if it is none."""
    match = _WORDS.fullmatch(text)
    if match is None:
        return None
    content = match[1] or match[2] or match[3]
    bare = re.sub(r"[^\w]+", "", content)
    return bare.casefold() if len(bare) > 1 else bare or None


def _reordered(gold: str, answer: str) -> bool:
    """Are two short words rather one product, such as ab and ba?"""
    return len(gold) <= 3 and gold.islower() and sorted(gold) == sorted(answer) and gold.isalpha()


def _same_base(gold: str, answer: str) -> bool | None:
    """Numbers with a base; a base that only the gold names is that of the question."""
    left, right = _BASE.fullmatch(gold), _BASE.fullmatch(answer)
    if left and right:
        return left[2] == right[2] and _digits(left[1]) == _digits(right[1])
    if left and answer.isalnum():
        return _digits(left[1]) == _digits(answer)
    if right and gold.isdigit():
        return False
    return None


def _digits(text: str) -> str:
    return text.upper().lstrip("0") or "0"


def unreadable(text: str) -> bool:
    """Can the value of `text` not be computed here?"""
    if value(units.bare(text)) is not None or words(text):
        return False
    try:
        expression.evaluate(tokens(text)[:MAX_TOKENS], 0)
    except (Unsupported, Imprecise, ArithmeticError, ValueError):
        return True
    except Oversized:
        return False
    return False


def _same_expressions(gold: str, answer: str) -> bool | None:
    left, right = tokens(gold), tokens(answer)
    if len(left) > MAX_TOKENS or len(right) > MAX_TOKENS:
        return False
    try:
        verdict = expression.same(left, right)
    except Oversized:
        return False
    if verdict is False and _decimal(gold, answer):
        return True
    return verdict


def _decimal(gold: str, answer: str) -> bool:
    """Is one of two unequal constants a decimal that stands for the other?"""
    for decimal, other in ((value(answer), gold), (value(gold), answer)):
        if decimal is None or decimal.decimals is None:
            continue
        try:
            exact = expression.evaluate(tokens(other), 0, precise())
        except Imprecise:
            continue
        if not isinstance(exact, Fraction) and exact.imag == 0 and abs(exact.real) < 1e9:
            rounded = Fraction(int(exact.real * 10**45), 10**45)
            return numbers.same(numbers.Quantity(rounded), decimal)
    return False
