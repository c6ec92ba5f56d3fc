"""No text makes reading or comparing fail, and none is right by accident.

TOPR_FUZZ_EXAMPLES=20000 makes it a long run.
"""

import os
import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rewards.strategies import boxed, hostile
from topr_pipeline.rewards import choice, exact, gsm8k, latex, verdict

EXAMPLES = int(os.environ.get("TOPR_FUZZ_EXAMPLES", "60"))
hard = settings(
    max_examples=EXAMPLES,
    derandomize="TOPR_FUZZ_EXAMPLES" not in os.environ,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
# No text below can be one of these by accident: none is made of the pieces of `strategies`.
GOLDS = ("8641", "-\\frac{3}{8641}", "x^2+8641", "(8641,3)", "8641,3", "\\sqrt{8641}", "x=8641",
         "[3,8641)", "\\begin{pmatrix}8641\\\\3\\end{pmatrix}", "3x+8641y=5", "\\text{oblong}",
         "8641^\\circ", "8641_9", "x>8641", "(3,4)\\cup(5,8641)", "3\\pm\\sqrt{8641}")  # fmt: skip


@hard
@given(st.one_of(hostile(), boxed()), st.sampled_from(GOLDS))
def test_math_reads_anything_and_pays_for_no_noise(text, gold):
    answer = latex.extract(text)
    assert answer is None or answer.strip()
    if answer is not None:
        assert latex.compare(gold, answer) is not True
        assert latex.compare(answer, answer) in (True, False)


@hard
@given(st.one_of(hostile(), hostile().map(lambda t: f"The answer is {t}")))
def test_gsm8k_reads_anything(text):
    answer = gsm8k.extract(text)
    if answer is not None:
        assert gsm8k.compare(answer, answer)
        assert not gsm8k.compare("8641", answer)
    gsm8k.gold(text)


@hard
@given(hostile())
def test_the_other_verifiers_read_anything(text):
    for verifier in (exact, choice, verdict):
        answer = verifier.extract(text)
        assert answer is None or answer.strip()
        verifier.gold(text)


@hard
@given(hostile(longest=12), hostile(longest=12))
def test_no_comparison_of_short_texts_takes_long(gold, answer):
    started = time.monotonic()
    latex.quickly(gold[:200], answer[:200])
    assert time.monotonic() - started < 2


@hard
@given(st.integers(-(10**12), 10**12), st.integers(1, 10**6))
def test_a_fraction_equals_itself_however_it_is_written(top, bottom):
    forms = (f"\\frac{{{top}}}{{{bottom}}}", f"{top}/{bottom}", f"{2 * top}/{2 * bottom}")
    for form in forms:
        assert latex.compare(f"{top}/{bottom}", form) is True
        assert latex.compare(f"{top + 1}/{bottom}", form) is False


@hard
@given(st.integers(-(10**15), 10**15), st.integers(0, 3))
def test_thousands_separators_do_not_change_a_number(number, places):
    text = f"{number / 1:,.{places}f}" if abs(number) < 2**50 else f"{number:,}"
    assert gsm8k.extract(f"The answer is {text}.") == text
    assert gsm8k.compare(str(number), text)
    assert latex.compare(str(number), text) is True
