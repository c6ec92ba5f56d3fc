"""A generative verifier: is its yes or no right about the solution that it judged?"""

import re

from topr_pipeline.rewards import statements
from topr_pipeline.rewards.statements import Statement

VERSION = "1"

_YES = ("yes", "true", "correct", "right", "1")
_NO = ("no", "false", "incorrect", "wrong", "0")
_NEGATED = {"yes": "no", "no": "yes"}
_WORD = r"(yes|no|true|false|correct|incorrect|right|wrong)\b"
_STATED = re.compile(
    rf"(?:\bverdict\b|\b(?:answer|solution|judge?ment)\s(?:is|was)\b|\bcorrect\s?\(yes/no\)\s?\?"
    rf"|\b(?:is|was)\s(?:the|this)\s(?:answer|solution)\scorrect\s?\?)[\s:*`\"'$]{{0,8}}(not\s)?{_WORD}",
    re.IGNORECASE,
)
_ALONE = re.compile(rf"[\s*`\"'$]{{0,8}}{_WORD}[\s*`\"'$.!]{{0,8}}", re.IGNORECASE)
_HEDGE = re.compile(rf"\W{{0,4}}\s{{0,2}}(?:or|and|/)\s{{0,2}}{_WORD}", re.IGNORECASE)


def extract(completion: str) -> str | None:
    """`yes` or `no`: the last stated verdict, or the last line if it holds just that."""
    text = statements.spoken(completion).strip()
    found = [
        Statement(_NEGATED[gold(m[2]) or ""] if m[1] else m[2], m.start(), m.end())
        for m in _STATED.finditer(text)
    ]
    for box in (*statements.boxes(text), *statements.tagged(text)):
        if word := _ALONE.fullmatch(box.text):
            found.append(Statement(word[1], box.start, box.end))
    kept = statements.asked(sorted(found, key=lambda s: s.start), text)
    if kept:
        return None if _HEDGE.match(text, kept[-1].end) else gold(kept[-1].text)
    word = _ALONE.fullmatch(text.rsplit("\n", 1)[-1][-100:])
    return gold(word[1]) if word else None


def gold(text: str) -> str | None:
    """`yes` or `no` of a truth value; None if it is none."""
    word = text.strip().rstrip(".").lower()
    return "yes" if word in _YES else "no" if word in _NO else None
