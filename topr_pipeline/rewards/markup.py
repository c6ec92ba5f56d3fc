"""One spelling for each piece of LaTeX, so that equal answers are mostly equal as text."""

import re
from functools import lru_cache

from topr_pipeline.rewards import numbers
from topr_pipeline.rewards.expression import TOKEN

MAX_LENGTH = 4000
"""Longer texts are compared as they stand."""

_SYMBOLS = str.maketrans(
    {
        "π": "\\pi ", "∞": "\\infty ", "×": "\\cdot ", "·": "\\cdot ", "⋅": "\\cdot ", "∗": "\\cdot ",
        "*": "\\cdot ", "÷": "/", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "∪": "\\cup ",
        "∩": "\\cap ", "∈": "\\in ", "±": "\\pm ", "∓": "\\mp ", "∅": "\\emptyset ", "√": "\\sqrt ",
        "º": "°", "˚": "°", "θ": "\\theta ", "α": "\\alpha ", "β": "\\beta ", "λ": "\\lambda ",
        "μ": "\\mu ", "φ": "\\phi ", "{": "{", "≈": "\\approx ", "，": ",", "；": ";", "−": "-",
    }
)  # fmt: skip
_REMOVED = re.compile(
    r"\\(?:left|right)\s*\.|\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|nolimits"
    r"|boldsymbol|mathbf|mathit|bm|bf|it|rm|mathstrut|strut)(?![A-Za-z])"
    r"|\\(?:hspace|phantom|label|tag)\*?\{[^{}]*\}|\\\$|\$|\\[()]"
)
_SPACES = re.compile(r"\\(?:[,;:> ]|quad(?![A-Za-z])|qquad(?![A-Za-z])|enspace(?![A-Za-z]))|~|\s+")
_SYNONYMS = {
    "\\dfrac": "\\frac", "\\tfrac": "\\frac", "\\cfrac": "\\frac", "\\dbinom": "\\binom",
    "\\tbinom": "\\binom", "\\times": "\\cdot", "\\div": "/", "\\leq": "\\le", "\\geq": "\\ge",
    "\\leqslant": "\\le", "\\geqslant": "\\ge", "\\neq": "\\ne", "\\lt": "<", "\\gt": ">",
    "\\lbrace": "\\{", "\\rbrace": "\\}", "\\lbrack": "[", "\\rbrack": "]", "\\lvert": "|",
    "\\rvert": "|", "\\vert": "|", "\\mid": "|", "\\degree": "°", "\\degrees": "°", "\\dots": "\\ldots",
    "\\cdots": "\\ldots", "\\varnothing": "\\emptyset", "\\%": "%", "\\iota": "i", "\\imath": "i",
    "\\land": "\\wedge", "\\arcsin": "\\arcsin", "\\pmod": "\\mod", "\\Longrightarrow": "\\implies",
    "\\&": "&", "\\#": "#", "\\_": "_", "\\lparen": "(", "\\rparen": ")", "\\slash": "/",
}  # fmt: skip
_SYNONYM = re.compile("|".join(re.escape(k) + (r"(?![A-Za-z])" if k[1:].isalpha() else "") for k in _SYNONYMS))
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|mbox|mathrm|mathsf|mathtt|operatorname\*?|hbox)\s*\{([^{}]*)\}"
)
_DEGREE = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z])|\{\s*°\s*\}|°)|\\circ(?![A-Za-z])\s*$")
_GROUPED = re.compile(r"(?<![\d.,])(\d{1,3}(?:(?:\{,\}|,\s*\\!|\\!\s*,|\\,)\s*\d{3})+)(?!\d)")
_GROUP_MARK = re.compile(r"\{,\}|\\[,!]|[,\s]")
_RUN = re.compile(r"\\(frac|sqrt|binom)(?![A-Za-z])\s*")
_DIGITS_UP = re.compile(r"([\^_])\s*(-?\d{2,})(?![\d.])")
_ONE_UP = re.compile(r"([\^_])\s*(-?\d|-?[A-Za-z])(?![\d{])")
_NUMBER_DIGITS = re.compile(r"(?<![\d.])0+(?=\d)")


@lru_cache(maxsize=1 << 16)
def tidy(text: str) -> str:
    """`text` in one spelling, without delimiters, spacing and trailing punctuation."""
    text = text.strip()
    if len(text) > MAX_LENGTH:
        return text
    text = _GROUPED.sub(lambda m: _GROUP_MARK.sub("", m[1]), text)
    text = _DEGREE.sub("°", numbers.plain(text)).translate(_SYMBOLS)
    text = _REMOVED.sub("", text).replace("\\!", "").replace("{,}", ",")
    text = _SYNONYM.sub(lambda m: _SYNONYMS[m[0]] + (" " if m[0][-1].isalpha() else ""), text)
    text = _TEXT.sub(_worded, text)
    text = _SPACES.sub(" ", text)
    text = _braced(text) if "\\frac" in text or "\\sqrt" in text or "\\binom" in text else text
    text = _ONE_UP.sub(r"\1{\2}", _DIGITS_UP.sub(r"\1{\2}", text))
    text = _DEGREE.sub("°", text).strip()
    while text and text[-1] in ".,;:!" and not text.endswith(("\\,", "\\;")) and not _factorial(text):
        text = text[:-1].rstrip()
    return joined(TOKEN_WORDS.findall(text))


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
        number = last[-1:].isdigit() and (part[0].isdigit() or part[0] == ".")
        if (command and part[0].isalpha()) or number:
            out.append(" ")
        out.append(part)
        last = part
    return "".join(out)


def _factorial(text: str) -> bool:
    return text.endswith("!") and len(text) > 1 and (text[-2].isalnum() or text[-2] in ")!}")


def _worded(match: re.Match[str]) -> str:
    """`\\text{...}` as a connector, a sign, a letter, or words between « and »."""
    content = match[1].strip().strip("$")
    word = content.lower().strip(" ,.")
    if word in ("and", "or"):
        return " , "
    if word == "":
        return ","[: "," in content] + " "
    if word in ("percent", "pct", "%", "\\%"):
        return "%"
    if word in ("degree", "degrees", "deg"):
        return "°"
    if len(content) == 1 or content[0].isdigit() and numbers.quantity(content):
        return content
    return f"«{content}»"


def _braced(text: str) -> str:
    """`\\frac14`, `\\frac ab`, `\\sqrt2` and `\\sqrt(2)` with braces around their arguments."""
    out: list[str] = []
    position = 0
    while match := _RUN.search(text, position):
        out.append(text[position : match.start()] + "\\" + match[1])
        position = match.end()
        if match[1] == "sqrt" and text[position : position + 1] == "[":
            close = text.find("]", position)
            if close > 0:
                out.append(text[position : close + 1])
                position = close + 1
        for _ in range(1 if match[1] == "sqrt" else 2):
            argument, position = _argument(text, position)
            if argument is None:
                break
            out.append(argument)
        if out[-1][-4:] in ("frac", "sqrt"):
            out.append(" ")
    return "".join(out) + text[position:]


def _argument(text: str, position: int) -> tuple[str | None, int]:
    """The next argument with braces; None where a group begins, which stays as it is."""
    while text[position : position + 1] == " ":
        position += 1
    if position >= len(text):
        return None, position
    if text[position] == "{":
        end = _closing(text, position, "{", "}")
        inner = text[position + 1 : end]
        return ("{" + _braced_inner(inner) + "}" if end else None), (end + 1 if end else position)
    if text[position] == "(":
        end = _closing(text, position, "(", ")")
        return ("{" + text[position + 1 : end] + "}" if end else None), (end + 1 if end else position)
    command = re.compile(r"\\[A-Za-z]+|[^\\{}\s]").match(text, position)
    if command is None or command[0] in ("\\frac", "\\sqrt", "\\binom"):
        return None, position
    return "{" + command[0] + "}", command.end()


def _braced_inner(text: str) -> str:
    return _braced(text) if _RUN.search(text) else text


def _closing(text: str, position: int, opener: str, closer: str) -> int:
    """Where the group that opens at `position` closes; 0 if nowhere."""
    depth = 0
    for at in range(position, len(text)):
        if text[at] == opener and text[at - 1] != "\\":
            depth += 1
        elif text[at] == closer and text[at - 1] != "\\":
            depth -= 1
            if depth == 0:
                return at
    return 0
