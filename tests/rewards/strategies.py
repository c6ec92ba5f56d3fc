"""Strings that a model might write to no good: LaTeX, towers, digits, nesting, control."""

from hypothesis import strategies as st

PIECES = (
    "\\frac", "\\sqrt", "\\boxed", "\\boxed{", "{", "}", "(", ")", "[", "]", "\\{", "\\}", "|",
    "^", "_", "^{", "!", "!!", "\\binom{", "\\pm", "\\cdot", "*", "/", "+", "-", "=", "<", "\\le",
    "\\in", "\\cup", "\\infty", "\\sum_{k=1}^{", "\\prod", "\\int_0^1", "\\lim", "\\log_{2}",
    "\\pi", "\\text{", "\\text{ and }", "\\begin{pmatrix}", "\\end{pmatrix}", "\\\\", "&", ",",
    ";", ":", ".", "%", "$", "$$", "\\(", "\\)", "\\left(", "\\right)", "\u00b0", "^\\circ", "e",
    "i", "x", "y", "f(x)", "0", "1", "2", "7", "10", "99", "0.5", "1e9", "10^{10}", "9^{9^{9}}",
    "((10!)!)!", "123,456", "The answer is ", "answer: ", "#### ", "\nQuestion:", "<think>",
    "</think>", "<answer>", "</answer>", "not ", " or ", " and ", "yes", "no", "A", "(B)", "\n",
    "\t", "\u0000", "\u001b[31m", "\u202e", "\u0663", "\uff17", "\u00bd", "\u221a", "\u4e2d",
    "\ud7ff", "\U0001f600", "\u00b2", "'", "''", "\u0301", "\u0323", "a'',",
)  # fmt: skip


def hostile(longest: int = 40) -> st.SearchStrategy[str]:
    """Texts of pieces, of one piece many times over, and of anything at all."""
    pieces = st.lists(st.sampled_from(PIECES), max_size=longest).map("".join)
    repeated = st.builds(
        lambda head, piece, times, tail: head + piece * times + tail,
        pieces, st.sampled_from(PIECES), st.integers(1, 3000), pieces,
    )  # fmt: skip
    nested = st.builds(
        lambda opener, closer, depth, inner: opener * depth + inner + closer * depth,
        st.sampled_from(("(", "{", "\\sqrt{", "\\frac{1}{", "[", "\\{", "2^{", "|")),
        st.sampled_from((")", "}", "]", "\\}", "|", "")),
        st.integers(1, 1000),
        pieces,
    )
    return st.one_of(pieces, repeated, nested, st.text(max_size=200))


def boxed(longest: int = 40) -> st.SearchStrategy[str]:
    """A hostile text inside a box."""
    return hostile(longest).map(lambda text: f"So $\\boxed{{{text}}}$.")


LONG = {
    "combining marks": ("The answer is ", "\u0301\u0323", ""),
    "dress": ("", "answer" + "\\text{" * 14, ""),
    "nested boxes": ("", "\\boxed{", "1"),
    "boxes": ("", "\\boxed{1}, ", ""),
    "markers": ("", "answer is ", ""),
    "statements": ("", "The answer is 5. ", ""),
    "hashes": ("", "####", ""),
    "spaces": ("The answer is", " ", "x"),
    "lines": ("", "\n", ""),
    "next questions": ("", "The answer is 5\nQuestion:", ""),
    "tags": ("", "<answer>1</answer>", ""),
    "open tags": ("", "<answer>", ""),
    "reasoning": ("", "<think>", ""),
    "digits": ("The answer is ", "1", ""),
    "dollars": ("The answer is ", "$", ""),
    "separators": ("\\boxed{1", ",111", "}"),
    "joints": ("", "\\boxed{1} and ", ""),
    "backslashes": ("", "\\", ""),
    "equals": ("The answer is ", "1=", ""),
    "denials": ("", "The answer is not ", ""),
    "options": ("", "option is ", ""),
}
"""Head, what is repeated, and tail of texts that a careless pattern takes quadratic time for."""


def long(name: str, characters: int) -> str:
    head, piece, tail = LONG[name]
    return head + piece * (characters // len(piece)) + tail


KNOTS = (
    r"(a'',b'',c'',d'',e'',f'',g'',h'',i'',j'',k'',l'',m'',n'',o'',p'',q'',r'',s'',1)=5",
    r"\binom{\binom{\binom{9^{60}}{100}}{100}}{100}", "((((9!)!)!)!)!", "9^{9^{9^{9}}}",
    r"\tanh(\exp(\exp(10^{300.5}\cdot 10^{300.5})))", "\\sqrt{" * 50 + "2" + "}" * 50,
    "\\frac{1}{" * 40 + "x" + "}" * 40, "(" * 190 + "1" + ")" * 190, "|" * 200, "1,2;" * 90,
    "\\pm " * 60 + "1", "x^{" * 90 + "2" + "}" * 90, "1=" * 190 + "1", "\\cup(1,2)" * 40,
    "\u0301\u0323" * 190, "'" * 390, "a_{b}'" * 60, "\\in x" * 70, "sin(cos(" * 40 + "x",
    "\\begin{pmatrix}" + "1&" * 150 + "1\\end{pmatrix}", "1" * 390, "0." + "1" * 380, "1e999",
)  # fmt: skip
"""Short answers that are much work to a careless comparison."""
