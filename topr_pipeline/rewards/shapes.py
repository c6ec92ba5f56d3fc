"""The shape of an answer (number, list, interval, matrix, equation) and equality of two shapes.

Every comparison returns True or False where that is certain and None where it takes symbolic work.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from topr_pipeline.rewards import expression, scalars
from topr_pipeline.rewards.markup import LIST_COMMA, joined, tokens

Kind = Literal["scalar", "list", "set", "tuple", "union", "matrix", "assignment", "relation"]
MAX_ITEMS = 200
MAX_DEPTH = 20

_COMMAS = {",", ";", LIST_COMMA}
_OPEN = {"(", "[", "{", "\\{", "\\begin"}
_CLOSE = {")", "]", "}", "\\}", "\\end"}
_RELATIONS = {"=", "<", ">", "\\le", "\\ge", "\\ne", "\\approx", "\\equiv", "\\sim", "\\implies"}
_REALS = ["\\mathbb", "{", "R", "}"]
_FLIPPED = {"<": ">", "\\le": "\\ge"}
_MIRRORED = _FLIPPED | {v: k for k, v in _FLIPPED.items()} | {"=": "="}
_MATRIX = re.compile(r"\\begin\{([pbB]?matrix|array)\}(?:\{[clr|]*\})?(.*?)\\end\{\1\}", re.DOTALL)
_LETTERS = r"\\?[A-Za-z]+(?:_\{?[A-Za-z0-9]+\}?)?'*"
_NAME = re.compile(
    rf"(?:«[^»]*»|{_LETTERS}(?:\({_LETTERS}(?:,{_LETTERS})*\))?|\({_LETTERS}(?:,{_LETTERS})+\)"
    rf"|{_LETTERS}:{_LETTERS}|\\frac\{{[A-Z]+\}}\{{[A-Z]+\}})"
)
_FUNCTION_VALUE = re.compile(
    r"(?!\\(?:log|ln|exp|sqrt))(?:\\?[A-Za-z]+|[{}_'|° ]|\^\{-1\})+(?:\([^()=]*\)|\[[^\[\]=]*\])?"
)
_DECIMAL_COMMA = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+),\d+")
_DECIMAL = re.compile(r"[+-]?\d*\.\d+")
_CONSTANT = re.compile(r"(?:\\(?:frac|sqrt|cdot|pi)|[^A-Za-z\\«])+")


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
    split = _split(parts, _COMMAS)
    groups = _split(parts, {";"})
    if 1 < len(groups) < len(split) <= MAX_ITEMS:
        return Shape("list", text, tuple(_group(p, depth) for p in groups if p))
    if len(split) > 1 and len(split) <= MAX_ITEMS and not _one_number(text):
        return Shape("list", text, _flat(_read(p, depth + 1) for p in split if p))
    for separators, kind in (({"\\cup"}, "union"), (_RELATIONS, "relation")):
        split = _split(parts, separators)
        if len(split) > 1:
            items = tuple(_read(p, depth + 1) for p in split)
            if kind == "union":
                return Shape("union", text, items)
            return _relation(text, items, [p for p in _top(parts) if p in _RELATIONS])
    return _bracketed(parts, text, depth)


def _bracketed(parts: list[str], text: str, depth: int) -> Shape:
    if parts[0] in ("(", "[", "\\{") and _closes(parts) == len(parts) - 1:
        inner = _split(parts[1:-1], _COMMAS)
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
    items = tuple(_read(p, depth + 1) for p in _split(parts, _COMMAS - {";"}) if p)
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


def _top(parts: Sequence[str]) -> list[str]:
    """The tokens outside of all brackets."""
    out, depth = [], 0
    for part in parts:
        depth += (part in _OPEN) - (part in _CLOSE)
        if depth == 0:
            out.append(part)
    return out


def _split(parts: Sequence[str], separators: set[str]) -> list[list[str]]:
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
    if set(signs) <= {"=", "\\equiv"} and _NAME.fullmatch(items[0].text) and _consistent(items[1:]):
        return Shape("assignment", text, items[-1:], name=items[0].text)
    if len(signs) == 2 and set(signs) <= set(_FLIPPED.values()):
        items, signs = items[::-1], [_MIRRORED[s] for s in signs[::-1]]
    if len(signs) == 2 and set(signs) <= set(_FLIPPED) and _variable(items[1].text):
        brackets = ("(" if signs[0] == "<" else "[") + (")" if signs[1] == "<" else "]")
        return Shape("tuple", text, (items[0], items[2]), brackets, items[1].text)
    if len(signs) == 1 and signs[0] in _MIRRORED and signs != ["="]:
        return _half_line(text, items, signs[0])
    return Shape("relation", text, items, brackets=" ".join(signs))


def _states(equation: Shape) -> bool:
    """Does `f(3)=7` or `2+5=7` state its last side? `2x=7` and `3=7` do not."""
    if set(equation.brackets.split()) != {"="} or not _consistent(equation.items):
        return False
    first, *others, _ = equation.items
    if _FUNCTION_VALUE.fullmatch(first.text):
        return True
    return all(_CONSTANT.fullmatch(side.text) for side in (first, *others))


def _consistent(sides: Sequence[Shape]) -> bool:
    """Do the constants among the sides of `x = a = b` agree? `3 = 5` states nothing."""
    constants = [side for side in sides if _CONSTANT.fullmatch(side.text)]
    return all(same(constants[-1], side) is not False for side in constants[:-1])


def _half_line(text: str, items: tuple[Shape, ...], sign: str) -> Shape:
    left, right = items
    if _variable(right.text) and not _variable(left.text):
        left, right = right, left
        sign = _MIRRORED[sign]
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


def same(gold: Shape, answer: Shape) -> bool | None:
    """Is `answer` what `gold` asks for? The rules are those of docs/rewards.md."""
    if gold.text == answer.text:
        return True
    solved = gold.kind == "assignment" and _CONSTANT.fullmatch(gold.items[0].text)
    if not solved and _same_relation(gold.text, answer.text):  # 2x=10 leaves x=5 to be found
        return True
    if answer.kind == "assignment" and gold.kind not in ("assignment", "relation"):
        return same(gold, answer.items[-1])
    if answer.brackets in ("= =", "= = =") and not _consistent(answer.items):
        return False
    if gold.kind == "assignment":
        if answer.kind == "assignment":
            verdict = same(gold.items[0], answer.items[0])
            if _same_name(gold.name, answer.name):
                return verdict
            return False if verdict is not None else None
        if answer.kind != "relation":
            return same(gold.items[0], answer)
        return None
    if answer.kind == "relation" and gold.kind not in ("relation", "matrix"):
        return same(gold, answer.items[-1]) if _states(answer) else False
    if gold.kind == "relation" and answer.kind != "relation" and _states(gold):
        return same(gold.items[-1], answer)
    if "relation" in (gold.kind, answer.kind):
        return None if answer.kind in ("relation", "assignment", "tuple", "union") else False
    if gold.kind == "scalar" and answer.kind == "scalar":
        return scalars.same(gold.text, answer.text)
    return _same_collections(gold, answer)


def _same_relation(gold: str, answer: str) -> bool:
    """Are two equations, or two inequalities, multiples of each other: `2x>6` and `x>3`?"""
    (left, sign), (right, other) = _difference(gold), _difference(answer)
    if not left or not right:
        return False
    ratio = expression.ratio(left, right)
    return ratio is not None and other == (sign if ratio > 0 else _MIRRORED.get(sign, sign))


@lru_cache(maxsize=1 << 10)
def _difference(text: str) -> tuple[list[str], str]:
    """The tokens of left - right of a relation with two sides, and its sign; none of others."""
    if not any(sign in text for sign in _MIRRORED):
        return [], ""
    parts = tokens(text)
    signs = [p for p in _top(parts) if p in _RELATIONS]
    if len(signs) != 1 or signs[0] not in _MIRRORED:
        return [], ""
    left, right = _split(parts, set(signs))
    return ["(", *left, ")", "-", "(", *right, ")"], signs[0]


def _same_name(gold: str, answer: str) -> bool:
    """`y` and `f(x)` both name a function's value; x and y do not name the same."""
    return gold.casefold() == answer.casefold() or (("(" in gold) != ("(" in answer))


def _same_collections(gold: Shape, answer: Shape) -> bool | None:
    gold, answer = _only(gold, answer), _only(answer, gold)
    if _DECIMAL_COMMA.fullmatch(answer.text) and _DECIMAL.fullmatch(gold.text):
        return scalars.same(gold.text, answer.text.replace(".", "").replace(",", "."))
    if gold.kind == answer.kind == "tuple":
        if gold.brackets != answer.brackets or (gold.name and answer.name not in ("", gold.name)):
            return False
        return _in_order(gold.items, answer.items)
    if "\\hat{" in answer.text + gold.text and (vectors := _as_sums(gold, answer)):
        return scalars.same(*vectors)
    gold, answer = _as_matrix(gold, answer), _as_matrix(answer, gold)
    if gold.kind == answer.kind == "matrix":
        if len(gold.items) != len(answer.items):
            return False
        return _all(
            _in_order(g.items, a.items) for g, a in zip(gold.items, answer.items, strict=True)
        )
    if "matrix" in (gold.kind, answer.kind):
        if "\\begin" in gold.text and "\\begin" in answer.text:
            return None
        left, right = (_vector(s) for s in (gold, answer))
        return _in_order(left, right) if left and right else False
    if gold.kind == answer.kind == "union":
        return _any_order(gold.items, answer.items)
    if "union" in (gold.kind, answer.kind):
        other = answer if gold.kind == "union" else gold
        if other.kind == "list" and all(i.kind == "tuple" and i.name for i in other.items):
            return _any_order(gold.items, answer.items)
        return None if {"tuple", "set"} & {gold.kind, answer.kind} else False
    return _same_lists(gold, answer)


def _same_lists(gold: Shape, answer: Shape) -> bool | None:
    """A bare list takes any order; a tuple or a bracketed list its own."""
    if "tuple" in (gold.kind, answer.kind):
        if "set" in (gold.kind, answer.kind) or "scalar" in (gold.kind, answer.kind):
            return None if scalars.unreadable(gold.text) and gold.kind == "scalar" else False
        if gold.kind == "tuple" and gold.brackets != "()":
            return False
        return _in_order(gold.items, answer.items)
    if gold.kind == "scalar" or answer.kind == "scalar":
        listed = scalars.grouped(gold.text) or scalars.grouped(answer.text)
        if listed is None and scalars.unreadable((gold if gold.kind == "scalar" else answer).text):
            return None
    return _any_order(_listed(gold), _listed(answer))


def _listed(shape: Shape) -> tuple[Shape, ...]:
    if shape.kind != "scalar":
        return shape.items
    parts = scalars.grouped(shape.text)
    return tuple(Shape("scalar", p) for p in parts) if parts else (shape,)


def _as_matrix(shape: Shape, other: Shape) -> Shape:
    """`[[1,2],[3,4]]` where the other side is a matrix."""
    if other.kind != "matrix" or shape.kind != "tuple":
        return shape
    if not all(row.kind == "tuple" and row.brackets == "[]" for row in shape.items):
        return shape
    return Shape("matrix", shape.text, shape.items)


def _only(shape: Shape, other: Shape) -> Shape:
    """The one item of `{(1,2)}` where the other side is no set."""
    alone = shape.kind == "set" and len(shape.items) == 1 and other.kind in ("tuple", "matrix")
    return shape.items[0] if alone else shape


def _as_sums(*shapes: Shape) -> tuple[str, str] | None:
    """Vectors as sums of `\\hat{i}`, `\\hat{j}` and `\\hat{k}`."""
    sums = []
    for shape in shapes:
        items = _vector(shape) or ()
        if not 2 <= len(items) <= 3 and shape.kind != "scalar":
            return None
        terms = [f"({item.text})\\hat{{{name}}}" for item, name in zip(items, "ijk", strict=False)]
        sums.append("+".join(terms) or shape.text)
    return sums[0], sums[1]


def _vector(shape: Shape) -> tuple[Shape, ...] | None:
    """The items of a tuple, or of a matrix with one row or one column."""
    if shape.kind == "tuple" and shape.brackets in ("()", "[]"):
        return shape.items
    if shape.kind != "matrix":
        return None
    if len(shape.items) == 1:
        return shape.items[0].items
    if all(len(row.items) == 1 for row in shape.items):
        return tuple(row.items[0] for row in shape.items)
    return None


def _in_order(gold: Sequence[Shape], answer: Sequence[Shape]) -> bool | None:
    if len(gold) != len(answer):
        return False
    return _all(same(g, a) for g, a in zip(gold, answer, strict=True))


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    """False if one is False, None if one is undecided, else True."""
    undecided = False
    for verdict in verdicts:
        if verdict is False:
            return False
        undecided |= verdict is None
    return None if undecided else True


def _any_order(gold: Sequence[Shape], answer: Sequence[Shape]) -> bool | None:
    """Does each side hold, up to order and repetition, what the other holds?"""
    if len(gold) * len(answer) > MAX_ITEMS**2 // 4:
        return None
    table = [[same(g, a) for a in answer] for g in gold]
    rows = [_some(row) for row in table]
    columns = [_some(column) for column in zip(*table, strict=True)]
    if not table or not columns:
        return not table and not columns
    return _all(rows + columns)


def _some(verdicts: Sequence[bool | None]) -> bool | None:
    if any(v is True for v in verdicts):
        return True
    return None if any(v is None for v in verdicts) else False
