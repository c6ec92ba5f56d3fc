"""Numbers as people write them, read exactly: `"$1,234.50"` is 2469/2.

A quantity keeps its scale apart from its value, because `28%` answers both a question whose gold is
28 and one whose gold is 0.28; likewise `2 million`.
"""
# ruff: noqa: RUF001 (look-alike characters are the subject here)

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

MAX_LENGTH = 1000
"""Longer texts are no number here: int() is quadratic and refuses 4300 digits."""

EXACT_DECIMALS = 6
"""A decimal stands for an exact value (0.333333 for 1/3) from so many decimals and digits on."""

SCALES = {
    "%": Fraction(1, 100), "percent": Fraction(1, 100), "percentage": Fraction(1, 100),
    "pct": Fraction(1, 100), "hundred": Fraction(100), "k": Fraction(1000),
    "thousand": Fraction(1000), "million": Fraction(10**6), "billion": Fraction(10**9),
    "trillion": Fraction(10**12),
}  # fmt: skip

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_VULGAR = re.compile("(?<=[0-9])(?=[¼-¾⅐-⅞])")
_SIGNS = str.maketrans("−‐‑‒–﹣－⁄∕٫٬", "-------//.,")
_SLICE = 100
"""Normalising takes quadratic time on a run of combining marks, so it is done in slices."""
_OTHER_DIGIT = re.compile(r"[^\x00-\x7f]")
CURRENCY = "$€£¥₹₽₩¢฿₫₴₺"

_DIGITS = re.compile(r"\d+")
_CORE = (
    r"(?:(?P<grouped>(?!0,)\d{1,3}(?:,\d{3})+(?![\d,]*\d)|\d{1,3}(?:[ ]\d{3})+(?![\d ]*\d)"
    r"|\d{1,3}(?:\.\d{3}){2,}(?![\d.]*\d)|\d{1,2}(?:,\d\d)+,\d{3}(?![\d,]*\d))"
    r"(?P<grouped_decimals>\.\d+)?"
    r"|(?P<comma>(?:\d{1,3}(?:\.\d{3})+|\d+),\d{1,2}(?![\d,])|0,\d+(?![\d,]))"
    r"|(?P<digits>\d+)?(?P<decimals>\.\d+)?)"
)
_QUANTITY = re.compile(
    rf"(?P<sign>[+-]?)\s?(?:US|CA|AU)?[{CURRENCY}]?\s?(?P<sign_after>[+-]?)\s?"
    rf"(?:(?P<mixed>\d{{1,9}})\s(?=\d+\s?/))?{_CORE}"
    r"(?:[eE](?P<exponent>[+-]?\d{1,3})(?!\d)|\s?(?:[x×*])\s?10\s?\^\s?\(?(?P<power>[+-]?\d{1,3})\)?(?!\d))?"
    r"(?:\s?/\s?(?P<under>[+-]?\d+(?:\.\d+)?|\([+-]?\d+\)))?"
    rf"\s?(?P<scale>%|(?:{'|'.join(w for w in SCALES if w.isalpha())})\b)?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Quantity:
    """`value` times `scale`; `decimals` after the point as written, None of a whole or fraction."""

    value: Fraction
    scale: Fraction = Fraction(1)
    decimals: int | None = None


def plain(text: str) -> str:
    """`text` with Unicode digits, signs, spaces and letter forms as ASCII; `m²` becomes `m^2`."""
    if text.isascii():
        return text
    text = _SUPERSCRIPT.sub(lambda m: "^" + m[0].translate(_SUPERSCRIPTS), text)
    text = _VULGAR.sub(" ", text)
    slices = (text[at : at + _SLICE] for at in range(0, len(text), _SLICE))
    text = "".join(unicodedata.normalize("NFKC", s) for s in slices).translate(_SIGNS)
    return _OTHER_DIGIT.sub(_ascii_digit, text)


def _ascii_digit(match: re.Match[str]) -> str:
    digit = unicodedata.decimal(match[0], None)
    return match[0] if digit is None else str(digit)


def find(text: str, start: int = 0) -> tuple[int, int] | None:
    """Where in `text` (already `plain`) the first quantity stands, or None."""
    while digits := _DIGITS.search(text, start):
        for begin in (_begin(text, start, digits.start()), digits.start()):
            match = _QUANTITY.match(text, begin)
            if match and match.end() > digits.start():
                return begin, match.end()
        start = digits.end()
    return None


def _begin(text: str, start: int, digit: int) -> int:
    """Where the signs, the currency and the point before a digit begin."""
    begin = digit
    while begin > start and digit - begin < 6 and text[begin - 1] in f"+-. {CURRENCY}":
        begin -= 1
    while text[begin] == " " or (text[begin] == "." and begin + 1 < digit):
        begin += 1
    return begin


@lru_cache(maxsize=1 << 13)
def quantity(text: str) -> Quantity | None:
    """The quantity that the whole of `text` is, after trailing punctuation; None if it is none."""
    if len(text) > MAX_LENGTH:
        return None
    text = plain(text).strip().strip(f"{CURRENCY} ").rstrip(".,;: ")
    match = _QUANTITY.fullmatch(text)
    if match is None or (match["sign"] and match["sign_after"]):
        return None
    value, decimals = _core(match)
    if value is None:
        return None
    value *= Fraction(10) ** int(match["exponent"] or match["power"] or 0)
    if match["under"]:
        under = Fraction(match["under"].strip("()"))
        if not under:
            return None
        value, decimals = value / under, None
    if match["mixed"]:
        value += int(match["mixed"])
    if "-" in (match["sign"], match["sign_after"]):
        value = -value
    return Quantity(
        value, SCALES[match["scale"].lower()] if match["scale"] else Fraction(1), decimals
    )


def _core(match: re.Match[str]) -> tuple[Fraction | None, int | None]:
    """Value and number of decimals of the unsigned number in the middle."""
    if match["comma"]:
        text = match["comma"].replace(".", "").replace(",", ".")
    else:
        whole = re.sub("[, .]", "", match["grouped"] or match["digits"] or "")
        text = whole + (match["grouped_decimals"] or match["decimals"] or "")
    if not text:
        return None, None
    decimals = len(text.partition(".")[2])
    shift = int(match["exponent"] or match["power"] or 0)
    return Fraction(text if text[0] != "." else "0" + text), max(decimals - shift, 0) or None


def same(gold: Quantity, answer: Quantity) -> bool:
    """Are the two equal, in value or, when only one has a scale, by the number as written?"""
    if gold.scale == answer.scale:
        return _close(gold, answer)
    if 1 in (gold.scale, answer.scale) and _close(gold, answer):
        return True
    return _close(_scaled(gold), _scaled(answer))


def _scaled(quantity: Quantity) -> Quantity:
    places = 2 if quantity.scale == Fraction(1, 100) else 0
    decimals = None if quantity.decimals is None else quantity.decimals + places
    return Quantity(quantity.value * quantity.scale, Fraction(1), decimals)


def _close(a: Quantity, b: Quantity) -> bool:
    if a.value == b.value:
        return True
    return any(_stands_for(x, y.value) for x, y in ((a, b), (b, a)))


def _stands_for(decimal: Quantity, value: Fraction) -> bool:
    """Is `decimal` the rounding, or the beginning, of `value` to enough digits to mean it?"""
    digits = decimal.decimals
    if digits is None or digits < EXACT_DECIMALS:
        return False
    unit = Fraction(1, 10**digits)
    if abs(decimal.value) < unit * 10 ** (EXACT_DECIMALS - 1):
        return False
    error = abs(decimal.value) - abs(value)
    within = -unit < error <= unit / 2
    return within and (decimal.value > 0) == (value > 0)
