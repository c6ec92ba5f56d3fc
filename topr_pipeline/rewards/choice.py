"""Multiple choice: the letter of the option that the completion settles on."""
# ruff: noqa: RUF001 (look-alike characters are the subject here)

import re

from topr_pipeline.rewards import statements
from topr_pipeline.rewards.statements import Statement

VERSION = "1"

_COMMAND = re.compile(r"\\(?:text(?:bf)?|math(?:bf|rm)|boxed|fbox|[,; (])")
_DENIES = re.compile(r"\b(?:is\snot|isn['’]t|can(?:no|['’])t\sbe)\b", re.IGNORECASE)
_DRESS = r"[\s*_`$:({\[\"'‘“]"
_SO = r"(?:it\sis|it['’]s|rather|instead)"
_CLOSING = r"[)*}$.\]\"'’”]"
_STATED = re.compile(
    rf"\b(?:answer|(?:option|choice)(?=\s(?:is|would|must|should)\b|\s?:))\b"
    rf"(?:\s(?:is|would\sbe|must\sbe|should\sbe)\b)?{_DRESS}{{0,24}}"
    rf"(?:not\s{_DRESS}{{0,6}}[A-J]{_CLOSING}{{0,3}}(?:\sn?or\s{_DRESS}{{0,6}}[A-J]{_CLOSING}{{0,3}})?"
    rf"[,;]?\s(?:but(?:\s{_SO})?|{_SO})\s{_DRESS}{{0,6}})?"
    rf"(?:(?:option|choice)\s{_DRESS}{{0,6}})?([A-Ja-j])(?!\w|['’]\w)"
    rf"|\b(?:option|choice)\s{_DRESS}{{0,6}}([A-J])[)*]{{0,3}}\s(?=is\s(?:the\s)?(?:correct|right|answer))"
    rf"|####[ \t]{{0,3}}{_DRESS}{{0,6}}([A-J]){_CLOSING}{{0,6}}[ \t]{{0,9}}(?=\n|$)",
    re.IGNORECASE,
)
_ALONE = re.compile(rf"{_DRESS}{{0,24}}([A-Ja-j])[\s*_`$.)}}\]\"'’”:]{{0,12}}")
_LEADING = re.compile(r"\s{0,3}\(?([A-J])[).:](?:\s|$)")
_LATER = re.compile(r"\([A-J]\)|\b(?:option|choice|answer)\b", re.IGNORECASE)
_WORD_FOLLOWS = re.compile(r"\s{1,3}(?!because\b|since\b|as\b)[A-Za-z]")
LONGEST_ALONE = 200
_HEDGE = re.compile(
    r"[\s*)}$.\]\"'’”]{0,6}(?:\bor\b|\band\b|/|,)\s{0,3}[(\\{\"'‘“]{0,3}(?:option\s)?[A-J](?![\w'])"
)
_TAKEN_BACK = re.compile(
    rf"{_CLOSING}{{0,3}}\s?\?+\s{{0,3}}(?:no|nope|wait|actually|hmm+)\b[\s,.:!-]{{0,6}}"
    rf"(?:{_SO}\s)?(?:{_DRESS}{{0,6}}([A-J])(?!\w|['’]\w))?",
    re.IGNORECASE,
)
_BOXED = re.compile(r"\s*(?:\\text(?:bf)?\{)?\s*\(?([A-Ja-j])\)?[.):]?\}?(?:\W.*)?", re.DOTALL)


def extract(completion: str) -> str | None:
    """The last stated letter, as a capital; a hedge ("B or C") or none at all is None."""
    text = statements.spoken(completion).strip()
    bare = _COMMAND.sub(lambda m: " " * len(m[0]), text)
    bare = _DENIES.sub(lambda m: "not".ljust(len(m[0])), bare)
    found = [
        Statement(m[1] or m[2] or m[3], m.start(), m.end())
        for m in _STATED.finditer(bare)
        if not m[1] or not (m[1] in "Iabcdefghij" and _WORD_FOLLOWS.match(bare, m.end()))
    ]
    for box in (*statements.boxes(text), *statements.tagged(text)):
        if letter := _BOXED.fullmatch(box.text):
            found.append(Statement(letter[1], box.start, box.end))
    kept = statements.asked(sorted(found, key=lambda s: s.start), text)
    if kept:
        letter, end = kept[-1].text, kept[-1].end
        if taken_back := _TAKEN_BACK.match(text, end):
            letter, end = taken_back[1], taken_back.end()
        return None if letter is None or _HEDGE.match(text, end) else letter.upper()
    alone = _ALONE.fullmatch(bare) if len(text) < LONGEST_ALONE else None
    if alone is None and (leading := _LEADING.match(text)):
        alone = None if _LATER.search(text, leading.end()) else leading
    return alone[1].upper() if alone else None


def gold(text: str) -> str | None:
    """The letter of a gold such as `B`, `(B)`, `\\text{(B)}` or `B) blue`."""
    bare = _COMMAND.sub(" ", text).strip()[:LONGEST_ALONE]
    match = _ALONE.fullmatch(bare) or _LEADING.match(text) or _BOXED.fullmatch(text.strip())
    return match[1].upper() if match and len(text.strip()) > 0 else None
