"""One spelling for each piece of LaTeX, so that equal answers are mostly equal as text."""
# ruff: noqa: RUF001 (look-alike characters are the subject here)

import re
from functools import lru_cache

from topr_pipeline.rewards import numbers, units
from topr_pipeline.rewards.expression import TOKEN

MAX_LENGTH = 4000
"""Longer texts are compared as they stand."""

_SYMBOLS = str.maketrans(
    {
        "π": "\\pi ", "∞": "\\infty ", "×": "\\cdot ", "·": "\\cdot ", "⋅": "\\cdot ", "÷": "/",
        "∗": "\\cdot ", "*": "\\cdot ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "≈": "\\approx ",
        "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ", "±": "\\pm ", "∓": "\\mp ", "√": "\\sqrt ",
        "∅": "\\emptyset ", "º": "°", "˚": "°", "θ": "\\theta ", "α": "\\alpha ", "β": "\\beta ",
        "λ": "\\lambda ", "μ": "\\mu ", "φ": "\\phi ", "、": ",",
    }
)  # fmt: skip
_REMOVED = re.compile(
    r"\\(?:left|right)\s*\.|\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|nolimits"
    r"|boldsymbol|underline|ensuremath|mathbf|mathit|bm|bf|it|rm|mathstrut|strut|checkmark|blacksquare|square)(?![A-Za-z])"
    r"|\\(?:hspace|phantom|label|tag|color)\*?\{[^{}]*\}|\\textcolor\{[^{}]*\}|\\\$|\$|\\[()]"
)
_SPACES = re.compile(r"\\(?:[,;:> ]|quad(?![A-Za-z])|qquad(?![A-Za-z])|enspace(?![A-Za-z]))|~|\s+")
_SYNONYMS = {
    "\\dfrac": "\\frac", "\\tfrac": "\\frac", "\\cfrac": "\\frac", "\\dbinom": "\\binom",
    "\\tbinom": "\\binom", "\\times": "\\cdot", "\\div": "/", "\\leq": "\\le", "\\geq": "\\ge",
    "\\leqslant": "\\le", "\\geqslant": "\\ge", "\\neq": "\\ne", "\\lt": "<", "\\gt": ">",
    "\\lbrace": "\\{", "\\rbrace": "\\}", "\\lbrack": "[", "\\rbrack": "]", "\\lvert": "|",
    "\\rvert": "|", "\\vert": "|", "\\mid": "|", "\\degree": "°", "\\degrees": "°",
    "\\dots": "\\ldots", "\\cdots": "\\ldots", "\\varnothing": "\\emptyset", "\\%": "%",
    "\\iota": "i", "\\imath": "i", "\\land": "\\wedge", "\\pmod": "\\mod",
    "\\Longrightarrow": "\\implies", "\\&": "&", "\\#": "#", "\\_": "_",
    "\\lparen": "(", "\\rparen": ")", "\\slash": "/", "\\langle": "(", "\\rangle": ")",
    "\\nicefrac": "\\frac", "\\sfrac": "\\frac", "\\dotsc": "\\ldots", "\\bigcup": "\\cup",
    "\\{\\}": "\\emptyset ", "\\lg": "\\log",
}  # fmt: skip
_SYNONYM = re.compile("|".join(re.escape(k) + r"(?![A-Za-z])" * k[1:].isalpha() for k in _SYNONYMS))
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|mbox|mathrm|mathsf|mathtt|operatorname\*?|hbox)\s*\{([^{}]*)\}"
)
_DEGREE = re.compile(
    r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z])|\{\s*°\s*\}|°)|\\circ(?![A-Za-z])\s*$"
)
_CONNECTOR = re.compile(
    r"(?<=[\d)}\]$,°%])\s*,?\s*(?:and|or)(?=[\s\d({\\$+A-Z-])"
    r"|(?<=\b[A-Za-z])\s+,?\s*(?:and|or)\s+(?=[A-Za-z]\b|[\d\\-])"
)
_PLAIN_NAMES = re.compile(
    r"(?<![\\A-Za-z])(sqrt|pi|theta|infty|infinity|(?:arc)?(?:sin|cos|tan)|ln|log)(?![A-Za-z])"
)
_ASCII = {
    "**": "^", ">=": "\\ge ", "<=": "\\le ", "->": "\\to ", "...": "\\ldots ", "…": "\\ldots ",
}  # fmt: skip
_NOT_EQUAL = re.compile(r"(?<=[A-Za-z\s)])!=")
_DOUBLED = re.compile(r"\\\\(?=[A-Za-z{}()\[\]])")
_GROUPED = re.compile(
    r"(?<![\d.,])\d{1,3}(?:(?:\s?\{\s?,\s?\}|,\s*\\!|\\!\s*,|\\,)\s*\d{3})+(?!\d)"
    r"|(?<![\d.,])\d{1,3}(?:\.\d{3}){2,}(?![\d.])"
)
_GROUP_MARK = re.compile(r"\s?\{\s?,\s?\}|\\[,!]|[,.\s]")
_CURRENCY = r"(\\\$|\\pounds|\\euro|[€£¥₹]|\bRs)"
_MONEY = re.compile(
    rf"(?:(?<=^)|(?<=[=,( ]))(-?)\s?(?:\\text\s?\{{)?\s?{_CURRENCY}[.\s]*\}}?\s?(-?)"
    r"(\d(?:[\d,]*\d)?(?:\.\d+)?|\.\d+)(?=\s?[.,;)]?\s?$|\s?[,;]\s)"
)
_MONEY_BEHIND = re.compile(rf"(?<=\d)\s?{_CURRENCY}\s?\.?$")
_REPEATING = re.compile(r"(\d*\.\d*)(?:\\(?:bar|dot)\s?\{?\s?(\d+)\s?\}?|\((\d+)\)(?=\s?$))")
_REVERSED = re.compile(r"([\[\]])([^\[\]()]+[,;][^\[\]()]+)([\[\]])")
_UNIT_VECTOR = re.compile(
    r"\\(?:mathbf|boldsymbol|vec|hat)\s?"
    r"(?:\{\s?\\?([ijk])(?:math)?\s?\}|\\?([ijk])(?:math)?(?![A-Za-z]))"
)
_CONDITION = re.compile(r"[,\s]*&\s*(?:«(?:if|for|when)»)?")
_SYSTEM = re.compile(r"\\begin\{cases\}([^&]*?)[\s,¶]*\\end\{cases\}")
_BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
          "ten": 10, "eleven": 11, "twelve": 12}  # fmt: skip
_CHOICE = re.compile(r"\b(?:[A-J]|[IVX]{1,4})\b")
_CHOICES = re.compile(
    rf"(?:[Oo]ption|[Cc]hoice)\s\(?{_CHOICE.pattern}\)?"
    rf"|\(?{_CHOICE.pattern}\)?(?:\s?(?:,|,?\sand\s|&)\s?\(?{_CHOICE.pattern}\)?){{1,9}}"
)
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_BASE_WORD = re.compile(rf"_\s?\{{?\s?«({'|'.join(_BASES)})»\s?\}}?")
LIST_COMMA = "，"
"""A comma that is no thousands separator, because a space follows it: `32, 349`."""
_SPACED_COMMA = re.compile(r"(?<=\d), (?=\d{3}(?!\d))")
_PRIME = re.compile(r"\^\s*(?:\{\s*((?:\\prime\s*)+)\}|\\prime(?![A-Za-z]))")
_DIGITS_UP = re.compile(r"([\^_])\s*(-?\d{2,})(?![\d.])")
_ONE_UP = re.compile(r"([\^_])\s*(-?\d|-?[A-Za-z])(?![\d{])")


@lru_cache(maxsize=1 << 13)
def tidy(text: str) -> str:
    """`text` in one spelling, without delimiters, spacing and trailing punctuation."""
    text = " ".join(text.split())
    if len(text) > MAX_LENGTH:
        return text
    text = bold[1] if (bold := _BOLD.fullmatch(text)) else text
    if "\\\\" in text and "\\begin" not in text:
        text = _DOUBLED.sub(r"\\", text)
    text = _CONNECTOR.sub(" , ", text)
    for ascii_form, latex in _ASCII.items():
        text = text.replace(ascii_form, latex)
    text = _NOT_EQUAL.sub(r"\\ne ", _PLAIN_NAMES.sub(_as_command, text))
    text = _REPEATING.sub(lambda m: f"{m[1]}\\overline{{{m[2] or m[3]}}}", text)
    text = _UNIT_VECTOR.sub(lambda m: f"\\hat{{{m[1] or m[2]}}}", text)
    text = _GROUPED.sub(lambda m: _GROUP_MARK.sub("", m[0]), text)
    text = _MONEY.sub(lambda m: f"{m[1]}{m[3]}{m[4]}{_currency(m[2])}", text)
    text = _MONEY_BEHIND.sub(lambda m: _currency(m[1]), text)
    text = _DEGREE.sub("°", numbers.plain(text).replace("\\\\", "¶")).translate(_SYMBOLS)
    text = _REMOVED.sub("", text).replace("\\!", "").replace("{,}", ",")
    text = _SYNONYM.sub(lambda m: _SYNONYMS[m[0]] + (" " if m[0][-1].isalpha() else ""), text)
    text = _PRIME.sub(lambda m: "'" * max(m[0].count("prime"), 1), text)
    text = _BASE_WORD.sub(lambda m: f"_{{{_BASES[m[1]]}}}", _TEXT.sub(_worded, text))
    if "{cases}" in text:
        text = _SYSTEM.sub(lambda m: re.sub(r"[,\s]*¶", ",", m[1]), _CONDITION.sub("&", text))
    text = _SPACED_COMMA.sub(LIST_COMMA, _SPACES.sub(" ", text))
    text = _ONE_UP.sub(r"\1{\2}", _DIGITS_UP.sub(r"\1{\2}", text))
    text = _DEGREE.sub("°", text).strip().rstrip(" ¶\\")
    if text[:1] == "]" or text[-1:] == "[":
        text = _REVERSED.sub(_interval, text)
    while (
        text and text[-1] in ".,;:!" and not text.endswith(("\\,", "\\;")) and not _factorial(text)
    ):
        text = text[:-1].rstrip()
    parts = tokens(text)
    return joined(_braced(parts) if any(c in text for c in _ARGUMENTS) else parts)


TOKEN_WORDS = re.compile(r"«[^»]*»|" + TOKEN.pattern, re.DOTALL)


def tokens(text: str) -> list[str]:
    """The tokens of a tidy text; words stay whole between « and »."""
    return TOKEN_WORDS.findall(text)


def joined(parts: list[str]) -> str:
    """Tokens as text again, with a space only where two would run together."""
    out: list[str] = []
    last = ""
    for part in parts:
        command = len(last) > 1 and last[0] == "\\" and last[1].isalpha()
        number = last[-1:].isdigit() and (part[0].isdigit() or (part[0] == "." and len(part) > 1))
        if (command and part[0].isalpha()) or number:
            out.append(" ")
        out.append(part)
        last = part
    return "".join(out)


def _as_command(match: re.Match[str]) -> str:
    return "\\infty " if match[1] == "infinity" else f"\\{match[1]} "


def _currency(sign: str) -> str:
    """A currency's name, so that `\\$18.00` is 18.00 with a unit like others."""
    return f"\\text{{{units.CURRENCIES[sign]}}}"


def _interval(match: re.Match[str]) -> str:
    """`]1,2]` as (1,2]."""
    return "[("[match[1] == "]"] + match[2] + "])"[match[3] == "["]


def _factorial(text: str) -> bool:
    return text.endswith("!") and len(text) > 1 and (text[-2].isalnum() or text[-2] in ")!}")


def _worded(match: re.Match[str]) -> str:
    """`\\text{...}` as a connector, a sign, a letter, or words between « and »."""
    content = match[1].strip(" ~$")
    word = content.lower().strip(" ,.")
    if word in ("and", "or"):
        return " , "
    if word == "":
        return ","[: "," in content] + " "
    if word in ("percent", "pct", "%", "\\%"):
        return "%"
    if word in ("degree", "degrees", "deg"):
        return "°"
    if word in ("all real numbers", "all reals"):
        return "\\mathbb{R}"
    if word in ("thousand", "million", "billion", "trillion"):
        return word
    if _CHOICES.fullmatch(content):
        return " , ".join(_CHOICE.findall(content))
    if (
        len(content) == 1
        and units.known(content)
        and match.string[: match.start()].rstrip(" ~,;:\\")[-1:].isdigit()
    ):
        return f"«{content}»"
    if len(content) == 1 or (content[0].isdigit() and numbers.quantity(content)):
        return content
    return f"«{content}»"


_ARGUMENTS = {"\\frac": 2, "\\binom": 2, "\\sqrt": 1, "\\mathbb": 1}
_WRAP = "wrap"
_CLOSERS = {"{": "}", "(": ")", "[": "]"}


def _braced(parts: list[str]) -> list[str]:
    """`\\frac14`, `\\frac ab`, `\\sqrt2` and `\\sqrt(2)` with braces around their arguments.

    `stack` holds open brackets and, of each command being read, how many arguments it still wants.
    """
    out: list[str] = []
    stack: list[int | str] = []
    rest = parts[::-1]
    while rest:
        part = rest.pop()
        if _inside_argument(stack) and _begins_argument(part, rest, stack, out):
            continue
        if part in _ARGUMENTS:
            stack.append(_ARGUMENTS[part])
            out.append(part)
            continue
        while _inside_argument(stack):
            stack.pop()
        if stack and part == _CLOSERS.get(str(stack[-1])):
            opened = stack.pop()
            out.append("}" if part == ")" and _inside_argument(stack) else part)
            if opened != "[":
                _argument_read(stack, out)
            continue
        if part in _CLOSERS:
            stack.append(part)
        out.append(part)
    return out


def _begins_argument(part: str, rest: list[str], stack: list[int | str], out: list[str]) -> bool:
    """Take `part` as (the beginning of) an argument, if it can be one."""
    if part == "[" and out[-1] == "\\sqrt":
        stack.append("[")
        out.append(part)
    elif part in ("{", "("):
        stack.append(part)
        out.append("{")
    elif part in _ARGUMENTS:
        stack.extend((_WRAP, _ARGUMENTS[part]))
        out.extend(("{", part))
    elif part[0].isalnum() or (part[0] == "\\" and part[1:].isalpha()):
        if part[0].isdigit() and len(part) > 1 and not _last_argument(stack, out):
            # TeX takes one digit, but 1/0 cannot be what \frac103 means.
            cut = 2 if len(part) == 3 and part[1] == "0" else 1
            rest.append(part[cut:])
            part = part[:cut]
        out.extend(("{", part, "}"))
        _argument_read(stack, out)
    else:
        return False
    return True


def _last_argument(stack: list[int | str], out: list[str]) -> bool:
    """Does the rest of the number belong to this argument (`\\sqrt12`), not to a next one?"""
    return stack[-1] == 1 and out[-1] == "\\sqrt"


def _inside_argument(stack: list[int | str]) -> bool:
    return bool(stack) and isinstance(stack[-1], int)


def _argument_read(stack: list[int | str], out: list[str]) -> None:
    """Count one argument of the innermost command, and close what that completes."""
    while stack and isinstance(stack[-1], int):
        wanted = stack.pop()
        assert isinstance(wanted, int)
        if wanted > 1:
            stack.append(wanted - 1)
            return
        if not (stack and stack[-1] == _WRAP):
            return
        stack.pop()
        out.append("}")
