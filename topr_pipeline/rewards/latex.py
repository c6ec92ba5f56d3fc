"""Mathematics: the boxed or stated LaTeX answer, compared by value, shape and math-verify."""

import re
from collections.abc import Iterator

from topr_pipeline.rewards import comparison, markup, scalars, shapes, statements
from topr_pipeline.rewards.statements import Statement

VERSION = "1"
LONGEST = 600
"""Characters after "answer is" in which a statement without a box is looked for."""

QUICK = 400
"""Longer answers, in characters, are compared in a worker."""

_MARKER = re.compile(r"\banswer\s{0,3}(?:\*\*)?\s{0,3}(?:\bis\b|[:=])|####", re.IGNORECASE)
_BEFORE_COLON = re.compile(
    r"(?:(?:^|\n)[ \t#*>_-]*|\b(?:final|correct|so,?\s(?:the|our|my))\s)$", re.IGNORECASE
)
_FILL = r"(?:\s|\$|\\[()\[\],;]|\\quad|\\text\s?\{|[}~])"
_JOINT = re.compile(
    rf"{_FILL}*(?:,|;|&|\band\b|\bor\b)(?:{_FILL}|\band\b|\bor\b)*"
    r"|\s*\\text\{[^{}]{0,40}\b(?:and|or)\s*\}\s*|(?:\s?\\(?:[,;: ]|q?quad\b)\s?)*"
)
_BEFORE_BOX = re.compile(r"(?:^|[\s$({\[=]|\\\(|\\\[)(-(?:\\?\$|\\\()?)$")
_LETTER = re.compile(r"(?:\\text(?:bf)?\{)?\(?[A-J]\)?[.:]?\s?\}?")
_BEHIND_BOX = re.compile(
    r"[ \t]{0,3}((?:\^|\\(?:pi|sqrt|cdot|times|d?frac|div|infty|pm)(?![A-Za-z]))"
    r"(?:[^$=\n,.\\]|\.\d|\\(?!text|q?quad|[)\]]|boxed|fbox|approx|implies|Rightarrow)){0,80})"
)
_BETWEEN = re.compile(r"\s{0,3}(?:,\s?(?:and|or)\b|,|;|and\b|or\b)\s{0,3}")
_PERCENT = re.compile(r"\s{0,2}(?:\$|\\\))?\s{0,2}(?:\\?%|percent\b|pct\b)", re.IGNORECASE)
_MATH = re.compile(
    r"\$\$(?P<a>[^$]+)\$\$|\$(?P<b>(?:\\\$|[^$])+)\$|\\\((?P<c>.+?)\\\)|\\\[(?P<d>.+?)\\\]",
    re.DOTALL,
)
_PLAIN_END = re.compile(
    r"\n|\.(?=\s|$)|(?<=[\s\d])\*\*|</|\s(?:because|since)\s|,\s(?:as|so|which|where)\s"
    r"|(?<=[\w)}\]])(?:,\s(?:and\s|but\s)?|\s(?:and|but)\s)not\s"
    r"|\s(?:rather\sthan|instead\sof)\s"
)
_DIRECT = re.compile(
    r"(?:[\s:*]|\b(?:actually|really|therefore|thus|then|indeed|now|instead|simply)\b)*"
    r"(?:\\?\$|\\[(\[]|-?[\d.]|\(|\*\*|[A-J][.)]?\s*(?:\n|$))"
)
"""How what states an answer begins: "is 5". "Is less than 5" only remarks on it."""
_BOUND = re.compile(
    r"\b(?:than|at (?:least|most)|between|not|divisible by|(?:multiple|factor) of|up to)\b",
    re.IGNORECASE,
)
_INSTEAD = re.compile(r"\b(?:it is|it's|but|rather|instead)\b", re.IGNORECASE)
_WORDS_ONLY = re.compile(r"[A-Za-z' ,-]{2,}")
_IS = re.compile(r"(?<=\s)(?:is|are|=|equals)\s+(?=[\d$\\(-])")
_LABEL = re.compile(r"(?:«\(?([A-J])[).:]*»|\(([A-J])\)|([A-J])[).:])(?!,)(.*)", re.DOTALL)
_BARE_BOX = re.compile(r"\\boxed\s*\$?(-?\d[\d.,/]{0,40})")
_COMMENT = re.compile(
    r"(?:in)?(?:correct|right|wrong|valid|reasonable|consistent|unique|clear)\b", re.IGNORECASE
)
_PROSE = re.compile(r"[A-Za-z]{2,}(?:[ ,']+[A-Za-z]{1,}){4,}")


def extract(completion: str) -> str | None:
    """The last box or stated answer before an invented next question; None if there is none."""
    text = statements.spoken(completion)
    stated = list(_stated_answers(text))
    clear = [s for s in stated if not _WORDS_ONLY.fullmatch(s.text)]
    found = [*_boxed_answers(text), *clear] or stated
    found = statements.asked(sorted(found, key=lambda s: s.start), text)
    return found[-1].text if found else None


def _boxed_answers(text: str) -> Iterator[Statement]:
    """Boxes and `<answer>` tags; a box within a tag is the tag's answer."""
    boxed = _joined(list(statements.boxes(text)), text)
    yield from boxed
    for match in _BARE_BOX.finditer(text):
        yield Statement(match[1].rstrip(".,"), match.start(), match.end())
    for tag in statements.tagged(text):
        inner = [*statements.boxes(tag.text), *_stated_answers(tag.text)]
        if not inner and tag.text:
            yield Statement(_undressed(tag.text), tag.start, tag.end)


def _stated_answers(text: str) -> Iterator[Statement]:
    boxed = text.find("\\boxed{")
    for at in statements.markers(text):
        match = _MARKER.match(text, at)
        if match is None or (match[0][-1] in ":=" and not _heads_line(text, at)):
            continue
        content = text[match.end() : match.end() + LONGEST]
        stated = None if "boxed" in content.split("\n\n", 1)[0] else _stated(content)
        if stated and 0 <= boxed < at and not _DIRECT.match(content):
            continue
        if stated:
            yield Statement(stated, match.start(), match.end())


def _heads_line(text: str, at: int) -> bool:
    """Is `Answer:` a heading, or "final answer:"? "We check our answer:" is neither."""
    before = text[max(at - 24, 0) : at]
    return _BEFORE_COLON.search(before if at <= 24 else "." + before) is not None


def _joined(boxes: list[Statement], text: str) -> list[Statement]:
    """Boxes joined by a comma, "and" or "or" are one answer; a percent sign after a box is its."""
    out: list[Statement] = []
    for box in boxes:
        percent = _PERCENT.match(text, box.end)
        content = box.text.strip() + ("\\%" if percent and "%" not in box.text else "")
        content, start, end = _touched(
            text, content, box.start, percent.end() if percent else box.end
        )
        if out and start - out[-1].end < 40 and _JOINT.fullmatch(text, out[-1].end, start):
            last = out.pop()
            start = last.start
            repeated = content in last.text.split(" , ")
            content = last.text if repeated else f"{last.text} , {content}"
        out.append(Statement(content, start, end))
    return out


def _touched(text: str, content: str, start: int, end: int) -> tuple[str, int, int]:
    """A box with the sign before it and the mathematics behind it: `-\\boxed{7}\\pi` is -7\\pi."""
    if before := _BEFORE_BOX.search(text[max(start - 5, 0) : start]):
        content = content if re.fullmatch(r"[\w.]+", content) else f"({content})"
        content, start = f"-{content}", start - len(before[1])
    behind = _BEHIND_BOX.match(text, end)
    if behind and not _LETTER.fullmatch(content):  # the value beside a choice is not its factor
        content = content if re.fullmatch(r"[\w.]+", content) else f"({content})"
        content, end = f"{content}{behind[1]}", behind.end()
    return content, start, end


def _stated(content: str) -> str | None:
    """The answer that follows "The answer is": its mathematics, or the rest of a short sentence."""
    content = content.lstrip(" \t\n:*")
    if content[:4].lower() == "not ":
        instead = _INSTEAD.search(content)
        if instead is None:
            return None
        content = content[instead.end() :].lstrip(" :")
    if _COMMENT.match(content):
        return None
    sentence = content[: end.start()] if (end := _PLAIN_END.search(content)) else content
    if not _MATH.match(content) and (copulas := list(_IS.finditer(sentence))):
        content, sentence = content[copulas[-1].end() :], sentence[copulas[-1].end() :]
    if math := _MATH.match(content) or _MATH.search(sentence):
        return None if _BOUND.search(content, 0, math.start()) else _mathematics(content, math)
    sentence = _undressed(sentence)
    if not sentence or _PROSE.search(sentence):
        return None
    return sentence if re.search(r"\w", sentence) else None


def _mathematics(content: str, math: re.Match[str]) -> str:
    """One stretch of inline mathematics, or several that a comma, "and" or "or" joins."""
    parts = [_inside(math)]
    while (joint := _BETWEEN.match(content, math.end())) and (
        following := _MATH.match(content, joint.end())
    ):
        parts.append(_inside(following))
        math = following
    percent = _PERCENT.match(content, math.end())
    return " , ".join(parts) + ("\\%" if percent and "%" not in parts[-1] else "")


def _inside(math: re.Match[str]) -> str:
    return next(g for g in math.groups() if g is not None).strip()


def _undressed(text: str) -> str:
    return text.strip(" \t\n*_`:").rstrip(".")


def gold(text: str) -> str | None:
    """The answer in a gold column, also where it holds a whole solution; None: unparseable."""
    if "####" in text:
        text = text.rsplit("####", 1)[-1]
    elif "boxed" in text or len(text) > 200 or re.search(r"\banswer\b", text, re.IGNORECASE):
        stated = extract(text)
        if stated is None and _PROSE.search(text[:2000]):
            return None
        text = stated or text
    canonical = markup.tidy(text)
    balanced = canonical.count("{") == canonical.count("}")
    readable = re.search(r"\w|\\\{\\\}", canonical)
    return text.strip() if canonical and balanced and readable else None


def quickly(gold: str, answer: str) -> bool | None:
    """As `compare`, but None for long answers, whose comparison may take a while."""
    return compare(gold, answer) if max(len(gold), len(answer)) <= QUICK or gold == answer else None


def compare(gold: str, answer: str) -> bool | None:
    """True or False where exact arithmetic decides, None where it takes `symbolic.equal`."""
    left, right = markup.tidy(gold), markup.tidy(answer)
    if not left or not right:
        return False
    if left == right:
        return True
    if len(left) > markup.MAX_LENGTH or len(right) > markup.MAX_LENGTH:
        return False
    if label := _LABEL.fullmatch(right):
        letter, rest = label[1] or label[2] or label[3], label[4]
        wanted = scalars.words(left)
        if wanted and len(wanted) == 1:
            return letter == wanted
        right = rest or right
    return comparison.same(shapes.read(left), shapes.read(right))


def clear(gold: str) -> bool:
    """Is the value, or each item, of this gold known here, so that no answer makes it hard?"""
    shape = shapes.read(markup.tidy(gold)) if len(gold) <= QUICK else None
    items = shape.items or (shape,) if shape else ()
    return bool(items) and not any(scalars.unreadable(item.text) for item in items)
