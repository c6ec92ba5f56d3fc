"""Units by one name, to tell a wrong unit from another spelling of the right one."""

import re

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
    "lb": "lb lbs pound pounds",
    "oz": "oz ounce ounces",
    "ml": "ml milliliter milliliters",
    "l": "l liter liters litre litres",
    "s": "s sec second seconds",
    "min": "min minute minutes",
    "h": "h hr hrs hour hours",
    "d": "day days",
    "wk": "week weeks",
    "yr": "year years",
    "dollar": "dollar dollars",
    "cent": "cent cents",
}
_NAMES = {spelling: name for name, text in _SPELLINGS.items() for spelling in text.split()}
_TAIL = re.compile(r"[\d}°%)]\s*((?:«|»|[A-Za-z]|[./ ²³]|\^\{[1-9]\}){1,80})")
_PART = re.compile(r"((?:square|sq\.?|cubic|cu\.?)?)\s*([A-Za-z]+?)\.?\s*(?:\^\{([1-9])\})?")
_WORD_POWERS = {"": 1, "sq": 2, "cu": 3}

Unit = list[tuple[str, int]]
"""Names with their powers, what follows a `/` or "per" after the first."""


def compare(gold: str, answer: str) -> tuple[str, str] | None:
    """Two tidy texts, without their unit where both name the same one; None if they clash.

    Units clash if both are known and differ: `15 cm` and `15 m`.
    """
    if not (gold[-1:].isalpha() or gold[-1:] in "»}.") or len(gold) + len(answer) > 400:
        return gold, answer
    left, right = _unit(gold), _unit(answer)
    if left is None or right is None:
        return gold, answer
    return (left[0], right[0]) if left[1] == right[1] else None


def _unit(text: str) -> tuple[str, Unit] | None:
    """Number and unit of `15«square inches»`, `15cm^{2}` or `15km/h`, if all of it is known."""
    starts = [m.start() for m in re.finditer(r"[\d}°%)]\s*[«A-Za-z.]", text)]
    tail = _TAIL.fullmatch(text, starts[-1]) if starts else None
    if tail is None:
        return None
    plain = tail[1].replace("«", " ").replace("»", "").replace("mph", "mi/h").replace(" per ", "/")
    unit: Unit = []
    for part in plain.split("/"):
        match = _PART.fullmatch(part.strip())
        name = _NAMES.get(match[2].lower()) if match else None
        if match is None or name is None:
            return None
        unit.append((name, int(match[3] or _WORD_POWERS[match[1][:2]])))
    return text[: starts[-1] + 1], unit
