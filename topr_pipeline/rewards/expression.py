"""Values of LaTeX expressions at test points: how two expressions are told apart, or found equal.

Evaluation is exact (fractions) where it can. Two different expressions differ at nearly every
point, so a difference at every test point shows that they are not equal; they are equal if at every
point their exact values are, or 50 digits of their values.
"""

import random
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache

from topr_pipeline.rewards import fields
from topr_pipeline.rewards.fields import DOUBLE, Field, Imprecise, Oversized, Unsupported, Value

MAX_DEPTH = 100
RANGES = ((0.2, 0.8), (1.1, 2.9), (11, 29), (-7.9, -3.1))
"""Of the variables at each test point; the last one tells |x| from x."""

TOKEN = re.compile(r"\d+(?:\.\d+)?|\.\d+|\\[A-Za-z]+|\\.|\S", re.DOTALL)
_GREEK = {
    f"\\{name}"
    for name in (
        "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "kappa",
        "lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "phi", "varphi", "chi", "psi", "omega",
        "Delta", "Omega", "Gamma", "Theta", "Lambda", "Phi", "Psi", "Sigma", "ell", "vartheta",
    )
}  # fmt: skip
_OPENERS = {"(": ")", "[": "]", "{": "}", "\\{": "\\}", "|": "|"}


def same(gold: Sequence[str], answer: Sequence[str]) -> bool | None:
    """Do two token lists stand for the same expression? None: not decided here.

    Doubles tell most pairs apart; what they cannot is computed again with 60 digits, so that
    neither a near miss nor rounding decides. Raises Oversized for values too large to compute.
    """
    try:
        verdict = _agree(gold, answer, DOUBLE)
    except Imprecise:
        verdict = True
    if verdict is not True:
        return verdict
    try:
        return _agree(gold, answer, fields.precise())
    except Imprecise:
        return None


def ratio(gold: Sequence[str], answer: Sequence[str]) -> Fraction | None:
    """`gold` / `answer` if that is the same exact number, not 0, at every test point."""
    try:
        ratios = set()
        for point in range(len(RANGES)):
            left, right = evaluate(gold, point), evaluate(answer, point)
            if not (isinstance(left, Fraction) and isinstance(right, Fraction) and left and right):
                return None
            ratios.add(left / right)
    except (Unsupported, Oversized, Imprecise, ArithmeticError, ValueError):
        return None
    return ratios.pop() if len(ratios) == 1 else None


def _agree(gold: Sequence[str], answer: Sequence[str], field: Field) -> bool | None:
    """True if the values agree at every point, False if at none, or if exact ones differ at one.

    None otherwise. Where one cannot be computed at the negative point, the others decide.
    """
    equal = different = 0
    for point in range(len(RANGES)):
        try:
            left, right = evaluate(gold, point, field), evaluate(answer, point, field)
            if isinstance(left, Fraction) and isinstance(right, Fraction):
                if left != right:
                    return False
                equal += 1
            elif field.differ(left, right):
                different += 1
            else:
                equal += 1
        except (Unsupported, ArithmeticError, ValueError):
            if point < len(RANGES) - 1:
                return None
    return None if equal and different else different == 0


def evaluate(tokens: Sequence[str], point: int, field: Field = DOUBLE) -> Value:
    """The value of the expression with every variable at its value of test point `point`.

    Raises Unsupported, Imprecise, Oversized (only of constants), ArithmeticError and ValueError.
    """
    reader = _Reader(tokens, point, field)
    try:
        value = reader.sum()
        if reader.kept < field.least_kept:
            raise Imprecise
    except Oversized as error:
        if reader.variables:
            raise Unsupported("a large value only at the test point") from error
        raise
    if reader.peek() is not None:
        raise Unsupported(reader.peek())
    return value


@lru_cache(maxsize=4096)
def _variable(name: str, point: int) -> Fraction:
    """Within the RANGES of the point; with an odd denominator, so that there are no accidents."""
    low, high = RANGES[point]
    return Fraction(
        random.Random(f"{name}:{point}").randint(int(low * 1000), int(high * 1000)), 1009
    )


class _Reader:
    """Recursive descent over the tokens, computing in `field` as it reads."""

    def __init__(self, tokens: Sequence[str], point: int, field: Field):
        self.tokens, self.point, self.field = tokens, point, field
        self.at = self.depth = 0
        self.last = point == len(RANGES) - 1
        self.variables = False
        self.kept = 1.0  # the share of the digits' precision left after cancellation

    def deepen(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Oversized("nesting")

    def peek(self) -> str | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def next(self) -> str:
        token = self.peek()
        if token is None:
            raise Unsupported("end")
        self.at += 1
        return token

    def sum(self) -> Value:
        self.deepen()
        value = self.term()
        while self.peek() in ("+", "-"):
            addend = self.term() if self.next() == "+" else -self.term()
            value = self.add(value, addend)
        self.depth -= 1
        return value

    def add(self, a: Value, b: Value) -> Value:
        value = self.field.add(a, b)
        if not isinstance(value, Fraction):
            size = max(abs(self.field.of(a)), abs(self.field.of(b)))
            self.keep(abs(value) / size if size else 1.0)
        return value

    def keep(self, share: float) -> None:
        self.kept *= min(float(share), 1.0)

    def term(self) -> Value:
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.next() == "-"
        value = self.power()
        value = -value if negative else value
        while True:
            token = self.peek()
            if token == "\\cdot":
                self.next()
                value = self.field.multiply(value, self.signed())
            elif token == "/":
                self.next()
                value = self.field.divide(value, self.signed())
            elif self.starts(token):
                if (token and token[0].isdigit()) or self.mixed():
                    raise Unsupported("no product")
                value = self.field.multiply(value, self.power())
            else:
                return value

    def mixed(self) -> bool:
        """Does a fraction of numbers follow a number: 2\\frac{1}{4}, which is no product?"""
        following = self.tokens[self.at : self.at + 6]
        fraction = len(following) == 6 and following[0] == "\\frac" and following[1] == "{"
        numbers = fraction and following[2].isdigit() and following[5].isdigit()
        return numbers and self.tokens[self.at - 1].isdigit()

    def signed(self) -> Value:
        if self.peek() == "-":
            self.next()
            return -self.power()
        return self.power()

    def starts(self, token: str | None) -> bool:
        if token is None:
            return False
        simple = token in "({" or token[0] == "." or token.isalnum()
        return simple or token in _GREEK or token in DOUBLE.functions or token in _ATOMS

    def power(self) -> Value:
        value = self.postfix(self.atom())
        if self.peek() == "^":
            self.next()
            value = self.postfix(self.field.power(value, self.argument()))
        return value

    def postfix(self, value: Value) -> Value:
        while self.peek() in ("!", "°", "%"):
            token = self.next()
            if token == "!":
                value = fields.factorial(value)
            elif token == "%":
                value = self.field.divide(value, Fraction(100))
            else:
                value = self.field.multiply(value, self.field.pi / 180)
        return value

    def argument(self) -> Value:
        """What `^` or a function without parentheses takes: a group, a sign, one token."""
        if self.peek() == "{":
            return self.group("}")
        if self.peek() in ("+", "-"):
            return self.signed()
        token = self.peek()
        if token and token.isdigit() and len(token) > 1:
            raise Unsupported("^12 is ^{1}2 to TeX")
        return self.atom()

    def group(self, closer: str) -> Value:
        self.next()
        value = self.sum()
        if self.next() != closer:
            raise Unsupported("bracket")
        return value

    def atom(self) -> Value:
        self.deepen()
        value = self._atom()
        self.depth -= 1
        return value

    def _atom(self) -> Value:
        token = self.peek()
        if token in ("(", "{"):
            return self.group(_OPENERS[token])
        if token == "|":
            value = abs(self.group("|"))
            return value if isinstance(value, Fraction) else self.field.complex(value)
        token = self.next()
        if token[0].isdigit() or (token[0] == "." and len(token) > 1):
            if len(token) > fields.MAX_BITS // 4:
                raise Oversized(token[:10])
            return Fraction(token)
        if token in _ATOMS:
            return _ATOMS[token](self)
        if token in DOUBLE.functions:
            return self.function(token)
        if (len(token) == 1 and token.isalpha() and token.isascii()) or token in _GREEK:
            return self.name(token)
        raise Unsupported(token)

    def name(self, token: str) -> Value:
        """A variable, with its subscript; `f(x)` may be a function and is not read."""
        if self.peek() == "_":
            self.next()
            subscript = self.next()
            while subscript[0] == "{" and subscript[-1] != "}":
                subscript += self.next()
            token += "_" + subscript.strip("{}")
        if self.peek() == "'" or (token[0] in "fghFGHP" and self.peek() == "("):
            raise Unsupported("function")
        self.variables = True
        return _variable(token, self.point)

    def function(self, token: str) -> Value:
        """`\\sin x`, `\\sin^2 x`, `\\sin(2x)`, `\\sin 2x`."""
        exponent: Value = Fraction(1)
        if self.peek() == "^":
            self.next()
            exponent = self.argument()
            if exponent == -1:
                raise Unsupported("inverse function")
        if self.peek() in ("(", "{"):
            value = self.atom()
            if self.peek() == "^":
                raise Unsupported("ambiguous power")
        else:
            value = self.power()
            while (
                (token_ := self.peek()) and self.starts(token_) and token_ not in DOUBLE.functions
            ):
                value = self.field.multiply(value, self.power())
        argument = self.field.of(value)
        value = self.field.function(token, argument)
        size = abs(value)
        self.keep(min(size, 1 / size if size > 1 else 1) / max(abs(argument), 1) if size else 0.0)
        return value if exponent == 1 else self.field.power(value, exponent)

    def fraction(self) -> Value:
        return self.field.divide(self.argument(), self.argument())

    def root(self) -> Value:
        degree = self.group("]") if self.peek() == "[" else Fraction(2)
        if not isinstance(degree, Fraction) or degree.denominator != 1 or degree < 2:
            raise Unsupported("root")
        value = self.argument()
        real = isinstance(value, Fraction) or value.imag == 0
        if self.variables and self.last and degree % 2 == 0 and real and value.real < 0:
            raise Unsupported("root of a negative number")  # \\sqrt{1/n}: a matter of the branch
        return self.field.root(value, int(degree))

    def accented(self) -> Value:
        """`\\hat{x}` or `\\bar x`: a variable of its own."""
        accent, (letter, *rest) = self.tokens[self.at - 1], self.tokens[self.at :][:3] or " "
        if letter == "{" and rest[1:] == ["}"]:
            self.at, letter = self.at + 2, rest[0]
        if not letter.isalpha():
            raise Unsupported(accent)
        self.at += 1
        self.variables = True
        return _variable(f"{accent} {letter}", self.point)

    def binomial(self) -> Value:
        return fields.binomial(self.argument(), self.argument())


_ATOMS: dict[str, Callable[[_Reader], Value]] = {
    "\\frac": _Reader.fraction,
    "\\sqrt": _Reader.root,
    "\\binom": _Reader.binomial,
    **dict.fromkeys(("\\hat", "\\vec", "\\bar", "\\tilde"), _Reader.accented),
    "\\pi": lambda reader: reader.field.pi,
    "e": lambda reader: reader.field.e,
    "i": lambda reader: reader.field.complex(0, 1),
}
