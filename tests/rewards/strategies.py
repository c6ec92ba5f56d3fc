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
    "\ud7ff", "\U0001f600", "\u00b2",
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
