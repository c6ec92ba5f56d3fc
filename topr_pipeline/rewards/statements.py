"""Which part of a completion states the answer: rules shared by the verifiers (docs/rewards.md).

Everything here is one pass over the text, whatever the text is.
"""

import bisect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_NEXT_QUESTION = re.compile(
    r"^[ \t]*[#*]*[ \t]*(?:question|problem|exercise|q|human|user|instruction)\b[ \t]*\d*[ \t]*\**:"
    r"|<\|(?:im_start|user|start_header_id)\|>",
    re.IGNORECASE | re.MULTILINE,
)
_BRACES = re.compile(r"\\boxed\s*\{|\\fbox\s*\{|\\[\s\S]|[{}]")
_TAGS = re.compile(r"<(/?)answer>", re.IGNORECASE)


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
    """The outermost closed, non-empty `\\boxed{}` in order of their beginning."""
    if "boxed" not in text and "fbox" not in text:
        return
    opened: list[tuple[int, int] | None] = []
    closed: list[Statement] = []
    for match in _BRACES.finditer(text):
        token = match[0]
        if token == "{":
            opened.append(None)
        elif token.endswith("{") and len(token) > 2:
            opened.append((match.start(), match.end()))
        elif token == "}" and opened and (box := opened.pop()):
            start, inner = box
            while closed and closed[-1].start > start:
                closed.pop()
            if text[inner : match.start()].strip():
                closed.append(Statement(text[inner : match.start()], start, match.end()))
    yield from closed


def tagged(text: str) -> Iterator[Statement]:
    """The contents of `<answer>...</answer>`."""
    begin: re.Match[str] | None = None
    for match in _TAGS.finditer(text):
        if not match[1]:
            begin = match
        elif begin is not None:
            yield Statement(text[begin.end() : match.start()].strip(), begin.start(), match.end())
            begin = None


def line_ends(text: str) -> list[int]:
    """The positions of the newlines of `text`, and its end."""
    return [*(m.start() for m in re.finditer("\n", text)), len(text)]


def line_end(ends: list[int], position: int) -> int:
    """The first of `ends` at or after `position`."""
    return ends[bisect.bisect_left(ends, position)]
