"""When two prompts are the same prompt: normalised text and the id made from it."""

import hashlib
import re
import unicodedata

_RAISED = re.compile(r"[⁰¹²³⁴-⁹⁺⁻]+")  # NFKC makes 22 of 2²
_FRACTION = re.compile(r"(?<=\d)[¼-¾⅐-⅞]")  # and 21/2 of 2½
_SAME_SIGN = str.maketrans("‐‑‒–—―−×∙⋅·÷⁄’", "-------****//'")  # noqa: RUF001

# Each begins with the character that it drops, which makes the search several times faster.
_APOSTROPHE = re.compile(r"'(?<=[^\W\d_]')(?=[^\W\d_])")
_THOUSANDS = re.compile(r",(?<=\d,)(?=\d{3}(?!\d))")
_FULL_STOP = re.compile(r"\.(?:(?!\d)|(?<=[^\W\d_]\.))")  # but not the point of 3.5 and .5
_EXCLAMATION = re.compile(r"!(?<![\d)]!)")  # but not the factorial 5!
_HYPHEN = re.compile(r"(?<=[^\W\d_])\s*-+\s*(?=[^\W\d_])")  # but not the minus of 3 - 4


class _Marks(dict[int, str]):
    """What becomes of a character: signs are set apart, other punctuation is dropped."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        category = unicodedata.category(char)
        if category in ("Sm", "Sc") or char in "+-*/%^()[]{}|\\_&@#!":
            self[code] = f" {char} "
        elif category[0] == "P" and char != ".":
            self[code] = " "
        else:
            self[code] = char
        return self[code]


_MARKS = _Marks()


def normalise(text: str) -> str:
    """`text` such that two writings of one prompt become equal.

    Unicode NFKC, case folded, punctuation dropped, white space collapsed. Kept is what changes a
    problem: digits, decimal points, minus and the other signs of arithmetic, brackets.

        >>> normalise("Ana  has -3.5 cards, and 1,000 pens!  How many?")
        'ana has - 3.5 cards and 1000 pens how many'
    """
    if not text.isascii():
        text = _FRACTION.sub(r" \g<0>", _RAISED.sub(r"^\g<0>", text))
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        text = text.translate(_SAME_SIGN)
    text = _THOUSANDS.sub("", _APOSTROPHE.sub("", text.casefold()))
    text = _EXCLAMATION.sub(" ", _FULL_STOP.sub(" ", text))
    if "-" in text:
        text = _HYPHEN.sub(" ", text)
    return " ".join(text.translate(_MARKS).split())


def prompt_id(text: str) -> str:
    """Hash of the normalised text: 16 hexadecimal digits of its SHA-256.

    Of punctuation alone nothing would be left: there the text itself is taken.
    """
    return hashlib.sha256((normalise(text) or text).encode()).hexdigest()[:16]
