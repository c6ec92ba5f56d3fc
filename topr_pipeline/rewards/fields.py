"""Arithmetic for `expression`: exact fractions as long as possible, then complex numbers.

A field says what complex numbers: doubles, or mpmath's with 60 digits.
"""

import cmath
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

MAX_BITS = 20_000
"""Largest exact number; also what keeps power towers and factorials from being computed."""
DIGITS = 60
LARGEST = 1e300
"""Magnitude beyond which, or whose inverse below which, only exact numbers are known."""

Value = Any
"""A Fraction, or a complex number of the field (complex or mpmath.mpc)."""


class Unsupported(Exception):
    """The expression holds something whose value is not known here."""


class Oversized(Exception):
    """The value has more digits than any answer needs."""


class Imprecise(Exception):
    """Too many digits cancelled for the value to decide anything."""


@dataclass(frozen=True)
class Field:
    """Complex numbers of one precision; `differ` decides on two of its values.

    `least_kept` is the share of the precision that cancellation (\\sqrt2-1.4142135) has to leave:
    values then still agree to a relative `tolerance` if they are equal.
    """

    complex: Callable[..., Any]
    pi: Any
    e: Any
    functions: Mapping[str, Callable[[Any], Any]]
    tolerance: Any
    least_kept: float

    def of(self, value: Value) -> Any:
        if isinstance(value, Fraction):
            if self is DOUBLE:
                return complex(float(value))
            return self.complex(value.numerator) / self.complex(value.denominator)
        return value

    def differ(self, a: Value, b: Value) -> bool:
        a, b = self.of(a), self.of(b)
        return abs(a - b) > self.tolerance * max(abs(a), abs(b))

    def finite(self, value: Any) -> Any:
        """`value`; ArithmeticError if it is too large to go on with, in any field, or no number."""
        if not abs(value) < LARGEST:
            raise ArithmeticError("not finite")
        return value

    def add(self, a: Value, b: Value) -> Value:
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return bounded(a + b)
        return self.finite(self.of(a) + self.of(b))

    def multiply(self, a: Value, b: Value) -> Value:
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return bounded(a * b)
        return self.normal(self.of(a) * self.of(b), a, b)

    def divide(self, a: Value, b: Value) -> Value:
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return bounded(a / b)
        return self.normal(self.of(a) / self.of(b), a)

    def normal(self, value: Any, *factors: Value) -> Any:
        """`value`, unless it is too small for doubles where no factor is 0."""
        if abs(value) < 1 / LARGEST and all(factors):
            raise ArithmeticError("too small")
        return self.finite(value)

    def function(self, name: str, argument: Any) -> Any:
        if name == "\\ln" and self.on_cut(argument):
            raise Unsupported("branch of a logarithm")
        return self.normal(self.functions[name](argument), name != "\\exp" and argument)

    def on_cut(self, value: Any) -> bool:
        """Is `value` so near the negative numbers that rounding chooses the branch?"""
        return value.real <= 0 and abs(value.imag) <= 1e-6 * abs(value)

    def power(self, base: Value, exponent: Value) -> Value:
        """`base ** exponent`: exact for whole exponents and for perfect roots.

        Raises Unsupported for a fractional power of what is not a positive number: (-1)^n.
        """
        if isinstance(exponent, Fraction) and exponent.denominator == 1:
            if isinstance(base, Fraction):
                return self._whole_power(base, int(exponent))
        elif isinstance(base, Fraction) and base > 0:
            small = isinstance(exponent, Fraction) and exponent.denominator <= 12
            if small and abs(exponent.numerator) <= 64:
                root = self.root(base, exponent.denominator)
                return self.power(root, Fraction(exponent.numerator))
        elif isinstance(base, Fraction) or base.real <= 0 or abs(base.imag) > 1e-12 * abs(base):
            raise Unsupported("branch of a power")
        return self.normal(self.of(base) ** self.of(exponent), base)

    def _whole_power(self, base: Fraction, exponent: int) -> Fraction:
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if bits == 1:  # -1, 0 or 1
            return base ** (exponent if exponent in (-1, 0) else 2 - exponent % 2)
        if bits * abs(exponent) > MAX_BITS:
            raise Oversized("power")
        return base**exponent

    def root(self, value: Value, degree: int) -> Value:
        """The real root where there is one, else the principal one; exact if it is rational."""
        if not isinstance(value, Fraction):
            if self.on_cut(value) or (degree > 2 and abs(value.imag) < 1e-12):
                raise Unsupported("branch of a root")
            return value ** (self.of(Fraction(1)) / degree)
        if value < 0:
            if degree % 2 == 0 and degree > 2:
                raise Unsupported("branch of a root")
            root = self.root(-value, degree)
            return self.multiply(self.complex(0, 1), root) if degree == 2 else -root
        top, bottom = whole_root(value.numerator, degree), whole_root(value.denominator, degree)
        if top is not None and bottom is not None:
            return Fraction(top, bottom)
        return self.of(value) ** (self.of(Fraction(1)) / degree)


def bounded(value: Fraction) -> Fraction:
    """`value`, unless it has too many digits: then Oversized is raised."""
    if value.numerator.bit_length() + value.denominator.bit_length() > 2 * MAX_BITS:
        raise Oversized("number")
    return value


def whole_root(n: int, degree: int) -> int | None:
    """The whole number whose power `degree` is n, if there is one (n < 2**500 but for squares)."""
    if degree == 2:
        root = math.isqrt(n)
    elif degree > 64 or n.bit_length() > 500:
        return None
    else:
        root = round(n ** (1 / degree))
    return root if root**degree == n else None


def factorial(value: Value) -> Value:
    """n! of a whole number n up to 500; Oversized beyond."""
    if not isinstance(value, Fraction) or value.denominator != 1 or value < 0:
        raise Unsupported("factorial")
    if value > 500:
        raise Oversized("factorial")
    return Fraction(math.factorial(int(value)))


def binomial(n: Value, k: Value) -> Value:
    """n over k for whole numbers; Oversized where it has far too many digits."""
    if not all(isinstance(v, Fraction) and v.denominator == 1 and v >= 0 for v in (n, k)):
        raise Unsupported("binomial")
    if k > n:
        return Fraction(0)
    if int(n).bit_length() * min(k, n - k) > MAX_BITS:
        raise Oversized("binomial")
    return Fraction(math.comb(int(n), int(k)))


def _functions(m: Any) -> dict[str, Callable[[Any], Any]]:
    """The functions by their LaTeX names, from `cmath` or an mpmath context."""
    return {
        "\\sin": m.sin, "\\cos": m.cos, "\\tan": m.tan, "\\cot": lambda z: 1 / m.tan(z),
        "\\sec": lambda z: 1 / m.cos(z), "\\csc": lambda z: 1 / m.sin(z), "\\arcsin": m.asin,
        "\\arccos": m.acos, "\\arctan": m.atan, "\\sinh": m.sinh, "\\cosh": m.cosh,
        "\\tanh": m.tanh, "\\ln": m.log, "\\exp": m.exp,
    }  # fmt: skip


DOUBLE = Field(complex, complex(math.pi), complex(math.e), _functions(cmath), 1e-7, 1e-6)


@lru_cache(maxsize=1)
def precise() -> Field:
    """Complex numbers of 60 digits, of which 35 have to agree."""
    from mpmath import MPContext

    context = MPContext()
    context.dps = DIGITS
    pi, e = context.mpc(+context.pi), context.mpc(+context.e)
    return Field(context.mpc, pi, e, _functions(context), context.mpf(10) ** -35, 1e-20)
