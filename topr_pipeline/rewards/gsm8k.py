"""Grade-school answers: the number after the last "The answer is" (or `####`)."""
# ruff: noqa: RUF001 (look-alike characters are the subject here)

import re
from collections.abc import Iterator

from topr_pipeline.rewards import numbers, statements
from topr_pipeline.rewards.statements import Statement

VERSION = "1"
LONGEST = 400
"""Characters after a marker in which its number is looked for."""

_MARKER = re.compile(r"\banswer\s{1,3}is\b|####", re.IGNORECASE)
_DRESS = re.compile(
    r"\\(?:boxed|fbox|text(?:bf|it)?|math(?:bf|rm)|mbox)\s{0,3}\{|\\[()\[\]!,;: ]|\\(?=[$%])"
    r"|\\left|\\right|[{}]|\*\*|__|`|(?<!\d)(?<!\d\s)\*|\*(?!\s?\d)"
)
_FRACTION = re.compile(r"\\[dt]?frac\s?\{([^{}]{1,40})\}\s?\{([^{}]{1,40})\}")
_SHORT_FRACTION = re.compile(r"\\[dt]?frac\s?(?:\{(\d{1,40})\}|(\d0?(?=\d)|\d))\s?(\d)(?!\d)")
_LINE_END = re.compile(r"\n|<\||</?[a-z]")
_POWER = re.compile(r"(?<=\d)\s?\*\*\s?(?=\d)")
_DOLLARS = re.compile(r"\$(?:\s?\$)+")
_SIGNS = {"\\times": "×", "\\cdot": "×", "\\div": "÷", "\\pi": "π", "\\pm": "±", "\\sqrt": "√"}
_BEFORE = re.compile(
    r"(?:[√<>≤≥±]|\bhalf(?: of)?|\b(?:third|fourth|quarter|fifth|sixth|eighth|tenth)s? of"
    r"|\b(?:square|cube|root|percent|fraction) of|\b(?:twice|thrice|doubled?|tripled?|times)"
    r"|\bas (?:many|much) as|\bthan|\bat (?:least|most)|\bup to|\bover|\bunder|\bbelow|\babove)"
    r"(?: (?:the|these|those|his|her|their))?[\s$({]{0,3}$"
)
_INSTEAD = re.compile(r"\b(?:it is|it's|it was|but|rather|instead)\b", re.IGNORECASE)
_OPERATOR = re.compile(
    r"\s*(?:[+*^×÷=<>π√±~&]|['’′]\s?\d|;\s?\$?\d|/(?!\s?[a-z]{2})|e\d|-\s?\d|:\d|[xX]\s?\d"
    r"|[xyzn]\b|\.\d"
    r"|(?:of|times|minus|plus|(?:more|less|fewer|greater) than|(?:divided|multiplied) by)"
    r" \$?[\d(])",
    re.IGNORECASE,
)
_UP_TO_EQUALS = re.compile(r"(?:(?!\b(?:because|since|where|when|if|as|with|for)\b)[^=.,;:(])*=")
_HEDGE = re.compile(
    r"[\s$]*,?\s*(?:[a-z]+\s+)?(?:or|and|to)\s+[$]?\d|,\s?\d"
    r"|\s*(?:[a-z]+\s+)?or\s(?:more|less|fewer)\b"
    r"|\s*(?!because|since|when|if|as\b|so\b|for\b)(?:[a-z]+\s+){1,4}or\s+[$]?\d"
    r"|\s?(?:feet|foot|ft|hours?|hrs?|pounds?|lbs?|dollars?|minutes?|days?|weeks?|years?)\s\d",
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(
    r"(?:\s?[a-z]{1,20}\b){0,3}\s?(?:\?+\s*(?:no|nope|wait|actually|hmm+)\b[\s,.:!-]*"
    r"|[.,;(–—-]+\s*(?:no|nope|wait|sorry|oops|correction)\s?[,.:!–—-]+\s*"
    r"(?:(?:it is|it's|it should be|that is|i mean|make that)\s)?(?=\$?-?\d))",
    re.IGNORECASE,
)
_SIGN_WORD = re.compile(r"^[\s$]*(?:minus|negative)\s+(?=\$?\d)", re.IGNORECASE)
_AND_FRACTION = re.compile(r"(?<=\d)\s+and\s+(?=\d+/\d)")


def extract(completion: str) -> str | None:
    """The number's text in the last statement that has one, or None."""
    text = numbers.plain(statements.spoken(completion))
    found = statements.asked(_statements(text), text)
    return found[-1].text if found else None


def _statements(text: str) -> Iterator[Statement]:
    for at in statements.markers(text):
        match = _MARKER.match(text, at)
        if match is None:
            continue
        content = text[match.end() : match.end() + LONGEST].lstrip(" \t\n:*")
        stated = _stated(_LINE_END.split(content, maxsplit=1)[0])
        if stated is not None:
            yield Statement(stated, match.start(), match.end())


def _stated(line: str) -> str | None:
    """The one number that a statement such as `3 x 6 = $18.` comes to."""
    if "answer is" in line:
        line = line[: line.index("answer is")]
    if any(c in line for c in "\\*`{"):
        line = _SHORT_FRACTION.sub(r" \1\2/\3", line.replace("{,}", ","))
        line = _FRACTION.sub(r" \1/\2", line)
        for command, sign in _SIGNS.items():
            line = line.replace(command, sign)
        line = _DRESS.sub("", _POWER.sub("^", line))
    line = _SIGN_WORD.sub("-", _AND_FRACTION.sub(" ", _DOLLARS.sub("$", line)))
    start = 0
    if line[:4].lower() == "not ":
        instead = _INSTEAD.search(line)
        if instead is None:
            return None
        start = instead.end()
    return _number(line, start)


def _number(line: str, start: int) -> str | None:
    span = numbers.find(line, start)
    if span is None or _BEFORE.search(line, max(span[0] - 24, 0), span[0]):
        return None
    if taken_back := _TAKEN_BACK.match(line, span[1]):
        return _number(line, taken_back.end())
    if _OPERATOR.match(line, span[1]) or _UP_TO_EQUALS.match(line, span[1]):
        equals = line.rfind("=", span[1])
        if equals < 0:
            return None
        right = _number(line, equals + 1)
        alone = right is None and line[span[1] : equals].strip(" $") == ""
        return line[span[0] : span[1]].strip() if alone else right  # 15 = 3 x 5
    if _HEDGE.match(line, span[1]):
        return None
    text = line[span[0] : span[1]].strip()
    return text if numbers.quantity(text) is not None else None


def gold(text: str) -> str | None:
    """The number of a gold; of a whole GSM8K solution, the part after `####`. None: unparseable."""
    text = text.rsplit("####", 1)[-1].strip()
    return text if numbers.quantity(text) is not None else extract(text)


def compare(gold: str, answer: str) -> bool:
    """Are the two numbers, both of them readable, equal?"""
    left, right = numbers.quantity(gold), numbers.quantity(answer)
    return left is not None and right is not None and numbers.same(left, right)
