"""Equality of two answers that are one value each: numbers, words, bases, degrees, expressions."""

import re
from fractions import Fraction
from functools import lru_cache

from topr_pipeline.rewards import expression, numbers, units
from topr_pipeline.rewards.fields import Imprecise, Oversized, Unsupported, precise
from topr_pipeline.rewards.markup import tokens

MAX_TOKENS = 1500
MAX_UNIT_TEXT = 300

_FRACTION = re.compile(
    r"([+-]?)(\d*)\s?\\frac\{([+-]?\d+(?:\.\d+)?)\}\{([+-]?\d+(?:\.\d+)?)\}(%|°)?"
)
_REPEATING = re.compile(r"([+-]?)(\d*)\.(\d{0,40})\\overline\{(\d{1,40})\}")
_SCIENTIFIC = re.compile(r"([+-]?\d+(?:\.\d+)?)\\cdot\s?10\^\{([+-]?\d{1,3})\}(%)?")
_UNIT_TEXT = re.compile(r"[./]?«[^»]*»(?:\^\{[+-]?\d\})?$")
_UNIT_WORDS = re.compile(r"([^A-Za-z«]*\d[^A-Za-z«\d]{0,3})([A-Za-z][A-Za-z.]+)(?:\^\{\d\})?")
_KNOWN_UNITS = re.compile(
    r"(.*[\d)}])(?:cm|mm|km|kg|mg|mL|ml|ft|in|inches|inch|feet|meters|units?|mph|hours?|minutes?"
    r"|seconds?|days?|degrees?|dollars?|cents|miles|yards|pct|percent)(?:\^\{\d\})?"
)
_PERCENT_WORDS = re.compile(r"(.*\d)(?:pct|percent(?:age)?)")
_BASE = re.compile(r"\(?([0-9A-F]*\d[0-9A-F]*)\)?_\{?(?:\\text\{)?(\d{1,2})\}?")
_LEADING_WORDS = re.compile(r"«[^»]*»([^«»]+)")
_GARBAGE = re.compile(r"[^\x00-\x7f°]|(?<![\\A-Za-z])[A-Za-z]{4,}")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?[%°]?")
_PRIMES = re.compile(r"(?<=[A-Za-z)}'])'")
_DENIAL = re.compile(
    r"«[^»]*\b(?:not|never|negative|minus|than|least|most|wrong|incorrect|false|or|isn't"
    r"|half|third|quarter|twice|double|triple|root|multiple|factor|squared|cubed|pi|hundred|dozen)\b[^»]*»"
    r"|\d(?:is)?(?:not|wrong|incorrect|false|or(?:more|less)|(?:less|more)than)(?:correct|right)?$",
    re.IGNORECASE,
)
_SIGN_WORD = re.compile(r"«(?:minus|negative)»(?=[\d.\\])", re.IGNORECASE)
_TIME = re.compile(r"\d{1,2}:\d\d")
_INFINITE = ("\\infty", "+\\infty", "-\\infty")
_WORDS = re.compile(r"«([^»]*)»|([A-Za-z][A-Za-z' .-]+)|\(?([A-Z])\)?")


def same(gold: str, answer: str) -> bool | None:
    """True or False where certain, None where it takes symbolic work. Both texts are tidy."""
    gold, answer = _SIGN_WORD.sub("-", gold), _SIGN_WORD.sub("-", answer)
    if _apart(gold, answer) or (bare := units.compare(gold, answer)) is None:
        return False
    gold, answer = map(_bare, bare)
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
    if _denies(gold) != _denies(answer) or {gold[-1:], answer[-1:]} == {"%", "°"}:
        return True
    return len(_PRIMES.findall(gold)) != len(_PRIMES.findall(answer))


def _denies(text: str) -> bool:
    """Do words take back or bound the number beside them: `12 is wrong`, `at least 12`?"""
    return len(text) <= MAX_UNIT_TEXT and _DENIAL.search(text) is not None


def grouped(text: str) -> list[str] | None:
    """The parts of what is either one number with thousands separators or a list: `101,103`."""
    text = _bare(text)
    return text.split(",") if _GROUPED.fullmatch(text) else None


@lru_cache(maxsize=1 << 13)
def value(text: str) -> numbers.Quantity | None:
    """The exact number that a tidy text is, with mixed numbers, degrees and powers of ten."""
    match = _FRACTION.fullmatch(text)
    if match:
        sign, whole, top, bottom, unit = match.groups()
        if len(text) > numbers.MAX_LENGTH or not Fraction(bottom):
            return None
        if whole and ("-" in top + bottom or "." in top + bottom):
            return None
        number = Fraction(top) / Fraction(bottom) + int(whole or 0)
        scale = numbers.SCALES["%"] if unit == "%" else Fraction(1)
        return numbers.Quantity(-number if sign == "-" else number, scale)
    match = _SCIENTIFIC.fullmatch(text)
    if match:
        return numbers.quantity(f"{match[1]}e{match[2]}{match[3] or ''}")
    text = text.removesuffix("°")
    if match := _REPEATING.fullmatch(text):
        sign, whole, fixed, period = match.groups()
        number = Fraction(int(period), 10 ** len(period) - 1) + int(fixed or 0)
        number = number / 10 ** len(fixed) + int(whole or 0)
        return numbers.Quantity(-number if sign == "-" else number)
    return None if "," in text and not grouped(text) else numbers.quantity(text)


@lru_cache(maxsize=1 << 13)
def _bare(text: str) -> str:
    """`text` without units: `15«cm»^{2}` and `35 cm` are 15 and 35."""
    if len(text) > MAX_UNIT_TEXT:
        return text
    if "«" in text:
        bare = text
        while match := _UNIT_TEXT.search(bare):
            bare = bare[: match.start()].rstrip()
        if bare and "«" not in bare:
            return bare
        match = _LEADING_WORDS.fullmatch(text)
        if match and value(match[1]) is not None:
            return match[1]
    elif text[-1:].isalpha() or text[-1:] == "}":
        if match := _PERCENT_WORDS.fullmatch(text):
            return match[1] + "%"
        match = _UNIT_WORDS.fullmatch(text)
        if match and match[2].lower() not in numbers.SCALES and value(match[1]) is not None:
            return match[1]
        if match := _KNOWN_UNITS.fullmatch(text):
            return match[1]
    return text


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
    if value(_bare(text)) is not None or words(text):
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
