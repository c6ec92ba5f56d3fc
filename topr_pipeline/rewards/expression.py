"""Values of LaTeX expressions at test points: a fast way to tell two expressions apart.

Evaluation is exact (fractions) where it can be. Two different expressions differ at nearly every
point, so a difference at every test point proves that they are not equal; equality is proven only
where every value is exact.
"""

import cmath
import math
import random
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache

MAX_BITS = 20_000
"""Largest exact number; also what keeps power towers and factorials from being computed."""
MAX_DEPTH = 60
POINTS = 3

Value = Fraction | complex


class Unsupported(Exception):
    """The expression holds something whose value is not known here."""


class Oversized(Exception):
    """The value has more digits than any answer needs."""


TOKEN = re.compile(r"\d+(?:\.\d+)?|\.\d+|\\[A-Za-z]+|\\.|\S", re.DOTALL)
_GREEK = frozenset(
    "\\alpha \\beta \\gamma \\delta \\epsilon \\varepsilon \\zeta \\eta \\theta \\vartheta \\kappa "
    "\\lambda \\mu \\nu \\xi \\rho \\sigma \\tau \\phi \\varphi \\chi \\psi \\omega \\Delta \\Omega "
    "\\Gamma \\Theta \\Lambda \\Phi \\Psi \\Sigma \\ell".split()
)
_FUNCTIONS: dict[str, Callable[[complex], complex]] = {
    "\\sin": cmath.sin, "\\cos": cmath.cos, "\\tan": cmath.tan,
    "\\cot": lambda z: 1 / cmath.tan(z), "\\sec": lambda z: 1 / cmath.cos(z),
    "\\csc": lambda z: 1 / cmath.sin(z), "\\arcsin": cmath.asin, "\\arccos": cmath.acos,
    "\\arctan": cmath.atan, "\\sinh": cmath.sinh, "\\cosh": cmath.cosh, "\\tanh": cmath.tanh,
    "\\ln": cmath.log, "\\exp": cmath.exp,
}  # fmt: skip
_OPENERS = {"(": ")", "[": "]", "{": "}", "\\{": "\\}", "|": "|"}


def same(gold: Sequence[str], answer: Sequence[str]) -> bool | None:
    """Do two token lists stand for the same expression? None: not decided here.

    Raises Oversized when a value would be too large to compute.
    """
    different = exact = 0
    for point in range(POINTS):
        try:
            left, right = evaluate(gold, point), evaluate(answer, point)
        except (Unsupported, ArithmeticError, ValueError):
            return None
        if isinstance(left, Fraction) and isinstance(right, Fraction):
            exact += left == right
            different += left != right
        else:
            left, right = _float(left), _float(right)
            if not (cmath.isfinite(left) and cmath.isfinite(right)):
                return None
            different += abs(left - right) > 1e-7 * max(abs(left), abs(right), 1e-3)
    if different == POINTS:
        return False
    return True if exact == POINTS else None


def evaluate(tokens: Sequence[str], point: int) -> Value:
    """The value of the expression with every variable at its value of test point `point`.

    Raises Unsupported, Oversized (only of constants) and ArithmeticError.
    """
    reader = _Reader(tokens, point)
    try:
        value = reader.sum()
    except Oversized as error:
        if reader.variables:
            raise Unsupported("a large value only at the test point") from error
        raise
    if reader.peek() is not None:
        raise Unsupported(reader.peek())
    return value


@lru_cache(maxsize=4096)
def _variable(name: str, point: int) -> Fraction:
    """Between 0.2 and 0.8 at point 0, larger at the others; odd denominators, so no accidents."""
    low, high = ((200, 800), (1100, 2900), (3100, 7900))[point]
    return Fraction(random.Random(f"{name}:{point}").randint(low, high) * 2 + 1, 1999)


def _float(value: Value) -> complex:
    return complex(float(value)) if isinstance(value, Fraction) else value


class _Reader:
    """Recursive descent over the tokens, computing as it reads."""

    def __init__(self, tokens: Sequence[str], point: int):
        self.tokens, self.point = tokens, point
        self.at = self.depth = 0
        self.variables = False

    def peek(self) -> str | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def next(self) -> str:
        token = self.peek()
        if token is None:
            raise Unsupported("end")
        self.at += 1
        return token

    def sum(self) -> Value:
        value = self.term()
        while self.peek() in ("+", "-"):
            value = add(value, self.term() if self.next() == "+" else negate(self.term()))
        return value

    def term(self) -> Value:
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.next() == "-"
        value, divided = self.power(), False
        value = negate(value) if negative else value
        while True:
            token = self.peek()
            if token == "\\cdot":
                self.next()
                value, divided = multiply(value, self.signed()), False
            elif token == "/":
                self.next()
                value, divided = divide(value, self.signed()), True
            elif self.starts(token):
                if divided or token[0].isdigit():
                    raise Unsupported("ambiguous product")
                value = multiply(value, self.power())
            else:
                return value

    def signed(self) -> Value:
        if self.peek() == "-":
            self.next()
            return negate(self.power())
        return self.power()

    def starts(self, token: str | None) -> bool:
        if token is None:
            return False
        simple = token in "({" or token[0] == "." or token.isalnum()
        return simple or token in _GREEK or token in _FUNCTIONS or token in _ATOMS

    def power(self) -> Value:
        value = self.postfix(self.atom())
        if self.peek() == "^":
            self.next()
            value = self.postfix(raised(value, self.argument()))
        return value

    def postfix(self, value: Value) -> Value:
        while self.peek() in ("!", "°", "%"):
            token = self.next()
            if token == "!":
                value = factorial(value)
            elif token == "%":
                value = divide(value, Fraction(100))
            else:
                value = multiply(value, complex(math.pi / 180))
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
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Oversized("nesting")
        value = self._atom()
        self.depth -= 1
        return value

    def _atom(self) -> Value:
        token = self.peek()
        if token in ("(", "{"):
            return self.group(_OPENERS[token])
        if token == "|":
            return Fraction(abs(v)) if isinstance(v := self.group("|"), Fraction) else complex(abs(v))
        token = self.next()
        if token[0].isdigit() or (token[0] == "." and len(token) > 1):
            if len(token) > MAX_BITS // 4:
                raise Oversized(token[:10])
            return Fraction(token)
        if token in _ATOMS:
            return _ATOMS[token](self)
        if token in _FUNCTIONS:
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
            while (token_ := self.peek()) and self.starts(token_) and token_ not in _FUNCTIONS:
                value = multiply(value, self.power())
        return raised(_FUNCTIONS[token](_float(value)), exponent)

    def fraction(self) -> Value:
        return divide(self.argument(), self.argument())

    def root(self) -> Value:
        degree = self.group("]") if self.peek() == "[" else Fraction(2)
        if not isinstance(degree, Fraction) or degree.denominator != 1 or degree < 2:
            raise Unsupported("root")
        return rooted(self.argument(), int(degree))

    def binomial(self) -> Value:
        n, k = self.argument(), self.argument()
        whole = all(isinstance(v, Fraction) and v.denominator == 1 and v >= 0 for v in (n, k))
        if not whole:
            raise Unsupported("binomial")
        if n > 2000 and min(k, n - k) > 100:  # type: ignore[operator]
            raise Oversized("binomial")
        return Fraction(math.comb(int(n.real), int(k.real)))


_ATOMS: dict[str, Callable[[_Reader], Value]] = {
    "\\frac": _Reader.fraction,
    "\\sqrt": _Reader.root,
    "\\binom": _Reader.binomial,
    "\\pi": lambda _: complex(math.pi),
    "e": lambda _: complex(math.e),
    "i": lambda _: 1j,
}


def add(a: Value, b: Value) -> Value:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return _bounded(a + b)
    return _float(a) + _float(b)


def negate(a: Value) -> Value:
    return -a


def multiply(a: Value, b: Value) -> Value:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return _bounded(a * b)
    return _float(a) * _float(b)


def divide(a: Value, b: Value) -> Value:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return _bounded(a / b)
    return _float(a) / _float(b)


def _bounded(value: Fraction) -> Fraction:
    if value.numerator.bit_length() + value.denominator.bit_length() > 2 * MAX_BITS:
        raise Oversized("number")
    return value


def raised(base: Value, exponent: Value) -> Value:
    """`base ** exponent`: exact for whole exponents and for perfect roots."""
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        if exponent.denominator == 1:
            bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            if bits > 1 and bits * abs(exponent) > MAX_BITS:
                raise Oversized("power")
            return base ** (int(exponent) if bits > 1 else int(exponent) % 2 or 2 * (exponent != 0))
        if exponent.denominator <= 12 and abs(exponent.numerator) <= 64 and base > 0:
            return raised(rooted(base, exponent.denominator), Fraction(exponent.numerator))
    return _float(base) ** _float(exponent)


def rooted(value: Value, degree: int) -> Value:
    """The real root where there is one, otherwise the principal one; exact if it is rational."""
    if not isinstance(value, Fraction):
        if degree > 2 and abs(value.imag) < 1e-12:
            raise Unsupported("branch of a root")
        return value ** (1 / degree)
    if value < 0:
        if degree == 2:
            return 1j * _float(rooted(-value, 2))
        if degree % 2 == 0:
            raise Unsupported("branch of a root")
        return negate(rooted(-value, degree))
    top, bottom = _whole_root(value.numerator, degree), _whole_root(value.denominator, degree)
    if top is not None and bottom is not None:
        return Fraction(top, bottom)
    return complex(float(value) ** (1 / degree))


def _whole_root(n: int, degree: int) -> int | None:
    if degree == 2:
        root = math.isqrt(n)
    else:
        if degree > 64 or n.bit_length() > 500:
            return None
        root = round(n ** (1 / degree))
    return root if root**degree == n else None


def factorial(value: Value) -> Value:
    if not isinstance(value, Fraction) or value.denominator != 1 or value < 0:
        raise Unsupported("factorial")
    if value > 500:
        raise Oversized("factorial")
    return Fraction(math.factorial(int(value)))
