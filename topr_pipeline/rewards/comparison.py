"""Equality of two shapes: True or False where certain, None where it takes symbolic work."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from topr_pipeline.rewards import expression, scalars
from topr_pipeline.rewards.markup import tokens
from topr_pipeline.rewards.shapes import (
    CONSTANT,
    MAX_ITEMS,
    MIRRORED,
    RELATIONS,
    Shape,
    consistent,
    split_at,
    states,
    top,
)

_DECIMAL_COMMA = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+),\d+")
_DECIMAL = re.compile(r"[+-]?\d*\.\d+")


def same(gold: Shape, answer: Shape) -> bool | None:
    """Is `answer` what `gold` asks for? The rules are those of docs/rewards.md."""
    if gold.text == answer.text:
        return True
    solved = gold.kind == "assignment" and CONSTANT.fullmatch(gold.items[0].text)
    if not solved and _same_relation(gold.text, answer.text):  # 2x=10 leaves x=5 to be found
        return True
    if answer.kind == "assignment" and gold.kind not in ("assignment", "relation"):
        return same(gold, answer.items[-1])
    if answer.brackets in ("= =", "= = =") and not consistent(answer.items):
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
        return same(gold, answer.items[-1]) if states(answer) else False
    if gold.kind == "relation" and answer.kind != "relation" and states(gold):
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
    return ratio is not None and other == (sign if ratio > 0 else MIRRORED.get(sign, sign))


@lru_cache(maxsize=1 << 10)
def _difference(text: str) -> tuple[list[str], str]:
    """The tokens of left - right of a relation with two sides, and its sign; none of others."""
    if not any(sign in text for sign in MIRRORED):
        return [], ""
    parts = tokens(text)
    signs = [p for p in top(parts) if p in RELATIONS]
    if len(signs) != 1 or signs[0] not in MIRRORED:
        return [], ""
    left, right = split_at(parts, set(signs))
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
