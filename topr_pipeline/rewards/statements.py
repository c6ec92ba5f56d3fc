"""Which part of a completion states the answer: rules shared by the verifiers (docs/rewards.md).

Everything here is one pass over the text, whatever the text is.
"""
# ruff: noqa: RUF001 (look-alike characters are the subject here)

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_NEXT_QUESTION = re.compile(
    r"^[ \t]{0,8}[#*]{0,6}[ \t]{0,4}(?:question|problem|exercise|q|human|user|instruction)\b"
    r"[ \t]{0,4}\d{0,4}[ \t]{0,4}\*{0,3}[:.]"
    r"|^#{1,6}[ \t]{1,4}(?:question|problem|exercise)\b[ \t]{0,4}\d{0,4}[ \t]{0,4}$"
    r"|^(?:next|new)\s(?:question|problem)\b|^q\d{1,4}:|\[INST\]|^(?:user|human)[ \t]{0,4}$"
    r"|<\|(?:im_start|user|start_header_id|endoftext)\|>",
    re.IGNORECASE | re.MULTILINE,
)
_BRACES = re.compile(r"\\boxed\s*\{|\\fbox\s*\{|\\[\s\S]|[{}]")
_DENIED = re.compile(
    r"(?:\b(?:not|never|cannot)|n['’]t|\brather\sthan|\binstead\sof)"
    r"(?:\s(?:be|equal(?:\sto)?))?[\s$*(\[\\]{0,6}$",
    re.IGNORECASE,
)
_TAGS = re.compile(r"<(/?)answer>", re.IGNORECASE)


MOST = 100
"""Of more markers such as "answer is" than twice that, the first and the last are looked at."""


@dataclass(frozen=True)
class Statement:
    """An answer as stated: its text and where the statement begins and ends."""

    text: str
    start: int
    end: int


def spoken(completion: str) -> str:
    """What follows the reasoning: the text after the last `</think>`, none if it never closes."""
    if "think>" not in completion:
        return completion
    opened, closed = completion.rfind("<think>"), completion.rfind("</think>")
    return "" if opened > closed else completion[closed + len("</think>") :]


def markers(text: str) -> list[int]:
    """Where "answer" or `####` stands, in order: the first and the last MOST places.

    A loop of a million costs no more than that, and `str.find` is many times faster than a regular
    expression without regard to capitals.
    """
    found: list[int] = []
    for word, before in (("nswer", 1), ("NSWER", 1), ("####", 0)):
        at = text.find(word)
        while at >= 0:
            found.append(at - before)
            at = text.find(word, at + len(word))
    found.sort()
    return found[:MOST] + found[max(MOST, len(found) - MOST) :]


def asked(statements: Iterable[Statement], text: str) -> list[Statement]:
    """`statements` (in order) up to the first question that `text` invents after an answer."""
    kept: list[Statement] = []
    limit = None
    for statement in statements:
        if limit is not None and statement.start >= limit:
            break
        if limit is None:
            header = _NEXT_QUESTION.search(text, statement.end)
            limit = header.start() if header else len(text)
        kept.append(statement)
    return kept


def boxes(text: str) -> Iterator[Statement]:
    """The outermost closed, non-empty `\\boxed{}` in order of their beginning.

    One that is denied ("it cannot be \\boxed{6}") states nothing.
    """
    starts = [at for at in (text.find("\\boxed"), text.find("\\fbox")) if at >= 0]
    if not starts:
        return
    opened: list[tuple[int, int] | None] = []
    closed: list[tuple[int, int, int]] = []  # begin, begin and end of the content
    for match in _BRACES.finditer(text, min(starts)):
        token = match[0]
        if token == "{":
            opened.append(None)
        elif token.endswith("{") and len(token) > 2:
            opened.append((match.start(), match.end()))
        elif token == "}" and opened and (box := opened.pop()):
            start, inner = box
            while closed and closed[-1][0] > start:
                closed.pop()
            closed.append((start, inner, match.start()))
    for start, inner, end in closed:
        if text[inner:end].strip() and not _DENIED.search(text[max(start - 24, 0) : start]):
            yield Statement(text[inner:end], start, end + 1)


def tagged(text: str) -> Iterator[Statement]:
    """The contents of `<answer>...</answer>`."""
    begin: re.Match[str] | None = None
    for match in _TAGS.finditer(text):
        if not match[1]:
            begin = match
        elif begin is not None:
            yield Statement(text[begin.end() : match.start()].strip(), begin.start(), match.end())
            begin = None
