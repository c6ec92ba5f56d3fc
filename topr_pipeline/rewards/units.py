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
_UNIT = re.compile(
    r".*\d[}°%]*«?\s*((?:square|cubic|sq\.?)?)\s*([A-Za-z]+)\.?»?(?:\^\{\d\})?", re.DOTALL
)


def clash(gold: str, answer: str) -> bool:
    """Do two tidy texts name two different units, both known: `15 cm` and `15 m`?"""
    if not (gold[-1:].isalpha() or gold[-1:] in "»}.") or len(gold) + len(answer) > 400:
        return False
    left, right = _name(gold), _name(answer)
    return left is not None and right is not None and left != right


def _name(text: str) -> str | None:
    match = _UNIT.fullmatch(text)
    return _NAMES.get(match[2].lower()) if match else None
