"""Units, and the other words beside a number: which are dropped, which tell two answers apart."""

import re
from functools import lru_cache

from topr_pipeline.rewards import numbers

MAX_LENGTH = 300
"""Longer texts have no unit that is looked for."""

_SPELLINGS = {
    "mm": "mm millimeter millimeters millimetre millimetres",
    "cm": "cm centimeter centimeters centimetre centimetres",
    "m": "m meter meters metre metres",
    "km": "km kilometer kilometers kilometre kilometres",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard yards",
    "mi": "mi mile miles",
    "mg": "mg milligram milligrams",
    "g": "g gram grams",
    "kg": "kg kilogram kilograms",
    "pound": "lb lbs pound pounds gbp",
    "oz": "oz ounce ounces",
    "ml": "ml milliliter milliliters millilitre millilitres",
    "l": "l liter liters litre litres",
    "s": "s sec secs second seconds",
    "min": "min mins minute minutes",
    "h": "h hr hrs hour hours",
    "d": "day days",
    "wk": "week weeks",
    "mo": "month months",
    "yr": "year years yr yrs",
    "dollar": "dollar dollars usd",
    "cent": "cent cents",
    "euro": "euro euros eur",
    "yen": "yen jpy",
    "yuan": "yuan rmb cny",
    "rupee": "rupee rupees rs inr",
    "radian": "rad radian radians",
    "am": "am",
    "pm": "pm",
    "celsius": "celsius",
    "fahrenheit": "fahrenheit",
}
_NAMES = {spelling: name for name, text in _SPELLINGS.items() for spelling in text.split()}
_VAGUE = ("unit", "units", "percent", "pct", "degrees", "mph", "kph")
"""Of no kind that could clash with another, but no letters of a formula either."""

CURRENCIES = {
    "\\$": "dollars", "€": "euros", "£": "pounds", "¥": "yen", "₹": "rupees",
    "\\pounds": "pounds", "\\euro": "euros", "Rs": "rupees",
}  # fmt: skip

_TAIL = re.compile(r"[\d}°%)]\s*((?:«|»|[A-Za-z]|[./ ²³]|\^\{[1-9]\}){1,80})")
_TAIL_BEGINS = re.compile(r"[\d}°%)]\s*[«A-Za-z.]")
_PART = re.compile(r"((?:square|sq\.?|cubic|cu\.?)?)\s*([A-Za-z]+?)\.?\s*(?:\^\{([1-9])\})?")
_WORD_POWERS = {"": 1, "sq": 2, "cu": 3}
_ABBREVIATED = re.compile(r"\b([A-Za-z])\.\s?([A-Za-z])\b\.?")
_LETTERS = {"am", "pm", "rs", "mi"}
"""Without a space or `\\text{}` these are rather a product: `3am`."""
_SPELLED = "|".join(
    sorted((*(n for n in _NAMES if len(n) > 1 and n not in _LETTERS), *_VAGUE), key=len)[::-1]
)

_TEXT = re.compile(r"[./]?«[^»]*»(?:\^\{[+-]?\d\})?$")
_LEADING = re.compile(r"«[^»]*»([+-]?[\d.\\(][^«»]*)")
_PLAIN = re.compile(rf"(.*[\d)}}])(?:(?:{_SPELLED})|(?<=\d)[A-Za-z]{{4,}})(?:\^\{{\d\}})?")
_PERCENT = re.compile(r"(.*\d)(?:pct|percent(?:age)?)")
_DENIAL = re.compile(
    r"«[^»]*\b(?:not|never|negative|minus|than|least|most|wrong|incorrect|false|or|isn't|up to"
    r"|half|third|quarter|twice|double|triple|root|multiple|factor|squared|cubed|pi|hundred|dozen"
    r"|over|under|above|below|between|except)"
    r"\b[^»]*»"
    r"|\d(?:is)?(?:not|wrong|incorrect|false|or(?:more|less)|(?:less|more)than)(?:correct|right)?$",
    re.IGNORECASE,
)

Unit = list[tuple[str, int]]
"""Names with their powers, what follows a `/` or "per" after the first."""


def known(word: str) -> bool:
    """Is this the name of a unit?"""
    return word.lower() in _NAMES


def denied(text: str) -> bool:
    """Do words take back, bound or change the number beside them: `12 is wrong`, `at least 12`?"""
    return len(text) <= MAX_LENGTH and _DENIAL.search(text) is not None


def compare(gold: str, answer: str) -> tuple[str, str] | None:
    """Two tidy texts, without their unit where both name the same one; None if they clash.

    Units clash if both are known and differ: `15 cm` and `15 m`.
    """
    if not (gold[-1:].isalpha() or gold[-1:] in "»}.°") or len(gold) + len(answer) > MAX_LENGTH:
        return gold, answer
    left, right = _unit(gold), _unit(answer)
    if left is None or right is None:
        return gold, answer
    return (left[0], right[0]) if left[1] == right[1] else None


def _unit(text: str) -> tuple[str, Unit] | None:
    """Number and unit of `15«square inches»`, `15cm^{2}` or `15km/h`, if all of it is known."""
    if text[-2:] in ("°C", "°F"):
        return text[:-2], [(text[-1], 1)]
    if text[-1:] == "°":
        return text[:-1], [("°", 1)]
    starts = [m.start() for m in _TAIL_BEGINS.finditer(text)]
    tail = _TAIL.fullmatch(text, starts[-1]) if starts else None
    if tail is None:
        return None
    plain = tail[1].replace("«", " ").replace("»", "").replace("mph", "mi/h").replace(" per ", "/")
    unit: Unit = []
    for part in _ABBREVIATED.sub(r"\1\2", plain).split("/"):
        match = _PART.fullmatch(part.strip())
        name = _NAMES.get(match[2].lower()) if match else None
        if match is None or name is None:
            return None
        unit.append((name, int(match[3] or _WORD_POWERS[match[1][:2]])))
    return text[: starts[-1] + 1], unit


@lru_cache(maxsize=1 << 13)
def bare(text: str) -> str:
    """`text` without units: `15«cm»^{2}`, `35cm`, `«about ours:»7` and `10weeks` are numbers."""
    if len(text) > MAX_LENGTH:
        return text
    if text[-2:] in ("°C", "°F"):
        return text[:-2]
    if "«" in text:
        rest = text
        while match := _TEXT.search(rest):
            rest = rest[: match.start()].rstrip()
        if rest and "«" not in rest:
            return rest
        match = _LEADING.fullmatch(rest or text)
        return match[1] if match else text
    if text[-1:].isalpha() or text[-1:] == "}":
        if match := _PERCENT.fullmatch(text):
            return match[1] + "%"
        match = _PLAIN.fullmatch(text)
        if match and text[match.end(1) :].lower() not in numbers.SCALES:
            return match[1]
    return text
