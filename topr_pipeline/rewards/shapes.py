"""The shape of an answer: number, list, interval, matrix, equation."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from topr_pipeline.rewards import scalars
from topr_pipeline.rewards.markup import LIST_COMMA, joined, tokens

Kind = Literal["scalar", "list", "set", "tuple", "union", "matrix", "assignment", "relation"]
MAX_ITEMS = 200
MAX_DEPTH = 20

_COMMAS = {",", ";", LIST_COMMA}
_OPEN = {"(", "[", "{", "\\{", "\\begin"}
_CLOSE = {")", "]", "}", "\\}", "\\end"}
RELATIONS = {"=", "<", ">", "\\le", "\\ge", "\\ne", "\\approx", "\\equiv", "\\sim", "\\implies"}
_REALS = ["\\mathbb", "{", "R", "}"]
_FLIPPED = {"<": ">", "\\le": "\\ge"}
MIRRORED = _FLIPPED | {v: k for k, v in _FLIPPED.items()} | {"=": "="}
_MATRIX = re.compile(r"\\begin\{([pbB]?matrix|array)\}(?:\{[clr|]*\})?(.*?)\\end\{\1\}", re.DOTALL)
_LETTERS = r"\\?[A-Za-z]+(?:_\{?[A-Za-z0-9]+\}?)?'*"
_NAME = re.compile(
    rf"(?:«[^»]*»|{_LETTERS}(?:\({_LETTERS}(?:,{_LETTERS})*\))?|\({_LETTERS}(?:,{_LETTERS})+\)"
    rf"|{_LETTERS}:{_LETTERS}|\\frac\{{[A-Z]+\}}\{{[A-Z]+\}})"
)
_FUNCTION_VALUE = re.compile(
    r"(?!\\(?:log|ln|exp|sqrt))(?:\\?[A-Za-z]+|[{}_'|° ]|\^\{-1\})+(?:\([^()=]*\)|\[[^\[\]=]*\])?"
)
CONSTANT = re.compile(r"(?:\\(?:frac|sqrt|cdot|pi)|[^A-Za-z\\«])+")


@dataclass(frozen=True)
class Shape:
    """`text` in one spelling; `brackets` of a tuple or interval; `name` of what is assigned."""

    kind: Kind
    text: str
    items: tuple["Shape", ...] = ()
    brackets: str = ""
    name: str = ""


@lru_cache(maxsize=1 << 13)
def read(text: str) -> Shape:
    """The shape of a tidy text."""
    return _read(tokens(text), 0)


def _read(parts: Sequence[str], depth: int) -> Shape:
    parts = _unwrapped(list(parts))
    if parts == _REALS:
        parts = ["(", "-", "\\infty", ",", "\\infty", ")"]
    text = joined(parts)
    if depth > MAX_DEPTH or not parts:
        return Shape("scalar", text)
    if len(parts) > 3 and parts[0] in ("\\begin", "[", "(") and (matrix := _matrix(text, depth)):
        return matrix
    if "\\in" in parts[:8] and "," not in parts[: parts.index("\\in")]:
        at = parts.index("\\in")
        return _named(_read(parts[at + 1 :], depth + 1), joined(parts[:at]))
    split = split_at(parts, _COMMAS)
    groups = split_at(parts, {";"})
    if 1 < len(groups) < len(split) <= MAX_ITEMS:
        return Shape("list", text, tuple(_group(p, depth) for p in groups if p))
    if len(split) > 1 and len(split) <= MAX_ITEMS and not _one_number(text):
        return Shape("list", text, _flat(_read(p, depth + 1) for p in split if p))
    for separators, kind in (({"\\cup"}, "union"), (RELATIONS, "relation")):
        split = split_at(parts, separators)
        if len(split) > 1:
            items = tuple(_read(p, depth + 1) for p in split)
            if kind == "union":
                return Shape("union", text, items)
            return _relation(text, items, [p for p in top(parts) if p in RELATIONS])
    return _bracketed(parts, text, depth)


def _bracketed(parts: list[str], text: str, depth: int) -> Shape:
    if parts[0] in ("(", "[", "\\{") and _closes(parts) == len(parts) - 1:
        inner = split_at(parts[1:-1], _COMMAS)
        if parts[0] == "\\{" and (bar := _builder(parts)):
            return _read(parts[bar + 1 : -1], depth + 1)
        if parts[0] == "\\{":
            return Shape("set", text, _flat(_read(p, depth + 1) for p in inner if p))
        if len(inner) > 1:
            items = tuple(_read(p, depth + 1) for p in inner)
            return Shape("tuple", text, items, parts[0] + parts[-1])
        if parts[0] == "(" and parts[-1] == ")":
            return _read(parts[1:-1], depth + 1)
    if "\\pm" in parts or "\\mp" in parts:
        swaps = ({"\\pm": "+", "\\mp": "-"}, {"\\pm": "-", "\\mp": "+"})
        both = ([swap.get(p, p) for p in parts] for swap in swaps)
        return Shape("list", text, tuple(_read(_signs(p), depth + 1) for p in both))
    return Shape("scalar", text)


def _builder(parts: list[str]) -> int | None:
    """Where in `{x | x > 3}` or `{x \\in R : x > 3}` the condition begins, which says it all."""
    for at, part in enumerate(parts[:8]):
        if part in ("|", ":") and parts[1].isalpha() and parts[2] in ("|", ":", "\\in"):
            return at
    return None


def _signs(parts: list[str]) -> list[str]:
    return parts[1:] if parts[:1] == ["+"] else parts


def _one_number(text: str) -> bool:
    """Are the commas of `12,500` or `x=12,500` thousands separators?"""
    before, _, number = text.rpartition("=")
    return "," not in before and scalars.grouped(number) is not None


def _group(parts: list[str], depth: int) -> Shape:
    """One of the groups of `p=5,q=2;p=7,q=2`, which is as good as (5,2)."""
    items = tuple(_read(p, depth + 1) for p in split_at(parts, _COMMAS - {";"}) if p)
    return items[0] if len(items) == 1 else Shape("tuple", joined(parts), items, "()")


def _flat(items: Iterable[Shape]) -> tuple[Shape, ...]:
    """Items, with those of lists among them (`1 \\pm x, 3`) put in their place."""
    out: list[Shape] = []
    for item in items:
        inner = item.items[0] if item.kind == "assignment" else item
        out.extend(inner.items if inner.kind == "list" else (item,))
    return tuple(out)


def _unwrapped(parts: list[str]) -> list[str]:
    for _ in range(MAX_DEPTH):
        if len(parts) < 2 or parts[0] != "{" or _closes(parts) != len(parts) - 1:
            break
        parts = parts[1:-1]
    return parts


def _closes(parts: Sequence[str]) -> int:
    """Index of the bracket that closes the one `parts` begins with; -1 if none does."""
    depth = 0
    for at, part in enumerate(parts):
        depth += (part in _OPEN) - (part in _CLOSE)
        if depth == 0:
            return at
    return -1


def top(parts: Sequence[str]) -> list[str]:
    """The tokens outside of all brackets."""
    out, depth = [], 0
    for part in parts:
        depth += (part in _OPEN) - (part in _CLOSE)
        if depth == 0:
            out.append(part)
    return out


def split_at(parts: Sequence[str], separators: set[str]) -> list[list[str]]:
    """`parts` cut at those separators that stand outside of all brackets."""
    if separators.isdisjoint(parts):
        return [list(parts)]
    split: list[list[str]] = [[]]
    depth = 0
    for part in parts:
        depth += (part in _OPEN) - (part in _CLOSE)
        if depth == 0 and part in separators:
            split.append([])
        else:
            split[-1].append(part)
    return split


def _matrix(text: str, depth: int) -> Shape | None:
    bare = text.strip("[]()")
    match = _MATRIX.fullmatch(bare)
    if match is None or "\\begin" in match[2]:
        return None
    rows = [r for r in match[2].split("¶") if r]
    items = tuple(
        Shape("list", r, tuple(_read(tokens(c), depth + 1) for c in r.split("&"))) for r in rows
    )
    return Shape("matrix", text, items) if items else None


def _relation(text: str, items: tuple[Shape, ...], signs: list[str]) -> Shape:
    """An assignment (`x = ... = 5`), an interval (`1 < x \\le 2`), or any other relation.

    What follows an approximation sign only repeats the answer: `1/3 \\approx 0.33` is 1/3.
    """
    if "\\approx" in signs:
        at = signs.index("\\approx")
        if at > 0 or not _NAME.fullmatch(items[0].text):
            items, signs = items[: at + 1], signs[:at]
            if not signs:
                return items[0]
        else:
            signs = ["=", *signs[1:]]
    if signs == ["="] and _variable(items[1].text) and not _NAME.fullmatch(items[0].text):
        items = items[::-1]  # 5 = x
    if set(signs) <= {"=", "\\equiv"} and _NAME.fullmatch(items[0].text) and consistent(items[1:]):
        return Shape("assignment", text, items[-1:], name=items[0].text)
    if len(signs) == 2 and set(signs) <= set(_FLIPPED.values()):
        items, signs = items[::-1], [MIRRORED[s] for s in signs[::-1]]
    if len(signs) == 2 and set(signs) <= set(_FLIPPED) and _variable(items[1].text):
        brackets = ("(" if signs[0] == "<" else "[") + (")" if signs[1] == "<" else "]")
        return Shape("tuple", text, (items[0], items[2]), brackets, items[1].text)
    if len(signs) == 1 and signs[0] in MIRRORED and signs != ["="]:
        return _half_line(text, items, signs[0])
    return Shape("relation", text, items, brackets=" ".join(signs))


def states(equation: Shape) -> bool:
    """Does `f(3)=7` or `2+5=7` state its last side? `2x=7` and `3=7` do not."""
    if set(equation.brackets.split()) != {"="} or not consistent(equation.items):
        return False
    first, *others, _ = equation.items
    if _FUNCTION_VALUE.fullmatch(first.text):
        return True
    return all(CONSTANT.fullmatch(side.text) for side in (first, *others))


def consistent(sides: Sequence[Shape]) -> bool:
    """Do the constants among the sides of `x = a = b` agree? `3 = 5` states nothing."""
    constants = [side for side in sides if CONSTANT.fullmatch(side.text)]
    return all(scalars.same(constants[-1].text, side.text) is not False for side in constants[:-1])


def _half_line(text: str, items: tuple[Shape, ...], sign: str) -> Shape:
    left, right = items
    if _variable(right.text) and not _variable(left.text):
        left, right = right, left
        sign = MIRRORED[sign]
    if not _variable(left.text) or _variable(right.text):
        return Shape("relation", text, items, brackets=sign)
    if sign in (">", "\\ge"):
        ends = (right, Shape("scalar", "\\infty"))
        return Shape("tuple", text, ends, "(" + ")" if sign == ">" else "[)", left.text)
    ends = (Shape("scalar", "-\\infty"), right)
    return Shape("tuple", text, ends, "()" if sign == "<" else "(]", left.text)


def _variable(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and text not in ("\\pi", "e", "i", "\\infty")


def _named(shape: Shape, name: str) -> Shape:
    return Shape(shape.kind, shape.text, shape.items, shape.brackets, name)
