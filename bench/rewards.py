"""Verification: ours against math-verify called row by row and in a plain process pool.

    python bench/rewards.py [--rows 240000] [--baseline-rows 6000] [--gsm8k-rows 1000000]

The generator (seed 0): 7,500 golds, half of them from MATH-500 where ../shared/data has it, the
others made in the proportions of MATH (about 70 % whole numbers and fractions; the rest roots,
multiples of pi, polynomials, tuples, intervals, lists, matrices, percents, words, logarithms,
lines and sums), 32 samples each. 40 % of the samples are right, half of these in another notation
(`\\dfrac`, `a/b`, a thousands separator, a reordered sum or list, a product for a polynomial).
60 % are wrong: a prompt has a few wrong answers of its own (off by one, sign, inverse, a dropped
term, another prompt's gold), which recur with probability 1/2, 1/4, ...; 1 % of these are garbage;
3 % of the samples have no box. Completions are 600 to 900 characters of working, with a box at the
end. math-verify is called as TRL does, and its pool is warm. The run fails if one of our verdicts
is not what the row was made to be.

The baselines run on `--baseline-rows` random rows and are scaled to rows/s, which the table says.
Peak memory is that of the process and its children, sampled; it includes the rows themselves.
"""

import argparse
import json
import logging
import multiprocessing
import random
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import psutil
from rich.console import Console
from rich.table import Table

from topr_pipeline.experiment import Rewards
from topr_pipeline.rewards import VerifyReport, grade

WORKING = (
    "We set up the equation and simplify both sides step by step. Since $a^2 + b^2 = c^2$ holds, "
    "the sum of the terms is $\\frac{n(n+1)}{2}$, and substituting gives $x = 3y - 2$. "
)
Golds = tuple[str, list[str], list[str]]
"""A gold, other notations of it, and wrong answers."""


def whole(r: random.Random) -> Golds:
    n = r.choice([r.randint(-20, 200), r.randint(0, 60), r.randint(1000, 99999)])
    other = [f"{n:,}", f"{n}.0", f"x = {n}", f"{n}\\text{{ units}}"]
    return (
        str(n),
        other,
        [str(n + d) for d in (1, -1, 2, 10)] + [str(-n - 1), f"\\frac{{{7 * n + 1}}}{{7}}"],
    )


def fraction(r: random.Random) -> Golds:
    a, b = r.randint(1, 60), r.choice([3, 7, 8, 9, 11, 13, 16, 20])
    a += a % b == 0
    gold = f"\\frac{{{a}}}{{{b}}}"
    other = [f"\\dfrac{{{a}}}{{{b}}}", f"{a}/{b}", f"\\frac{{{2 * a}}}{{{2 * b}}}"]
    return gold, other, [f"\\frac{{{b}}}{{{a}}}", f"\\frac{{{a + 1}}}{{{b}}}", f"-{gold}", str(a)]


def root(r: random.Random) -> Golds:
    a, b = r.randint(2, 12), r.choice([2, 3, 5, 6, 7, 13])
    other = [f"{a} \\sqrt {b}", f"\\sqrt{{{a * a * b}}}", f"\\sqrt{{{b}}}\\cdot {a}"]
    wrong = [f"{a + 1}\\sqrt{{{b}}}", f"{a}\\sqrt{{{b + 4}}}", str(a), f"\\sqrt{{{a * b}}}"]
    return f"{a}\\sqrt{{{b}}}", other, wrong


def pi(r: random.Random) -> Golds:
    a, b = r.randint(2, 40), r.randint(2, 9)
    other = [f"{a} \\pi+{b}", f"{b}+{a}\\pi", f"{b} + \\pi \\cdot {a}"]
    return f"{a}\\pi + {b}", other, [f"{a}\\pi", f"{a + 1}\\pi+{b}", f"{a}\\pi-{b}", str(a * 3 + b)]


def polynomial(r: random.Random) -> Golds:
    a, b = r.randint(1, 9), r.randint(1, 9)
    gold = f"x^2 + {a + b}x + {a * b}"
    other = [f"(x+{a})(x+{b})", f"{a * b} + {a + b}x + x^2", f"x^{{2}}+{a + b}x+{a * b}"]
    wrong = [f"x^2 + {a + b + 1}x + {a * b}", f"x^2 - {a + b}x + {a * b}", f"(x-{a})(x+{b})"]
    return gold, other, wrong


def pair(r: random.Random) -> Golds:
    a, b = r.randint(-9, 9), r.randint(1, 9)
    other = [f"\\left( {a}, {b} \\right)", f"({a},{b})", f"(x,y)=({a},{b})"]
    return f"({a}, {b})", other, [f"({b}, {a - 20})", f"({a}, {b + 1})", f"({a + 1}, {b})", str(a)]


def interval(r: random.Random) -> Golds:
    a, b = r.randint(-9, 0), r.randint(1, 9)
    other = [f"[{a},{b})", f"\\left[{a}, {b}\\right)", f"{a} \\le x < {b}"]
    return (
        f"[{a}, {b})",
        other,
        [f"({a}, {b})", f"[{a}, {b}]", f"[{a}, \\infty)", f"[{a}, {b + 1})"],
    )


def several(r: random.Random) -> Golds:
    a, b, c = r.sample(range(-9, 10), 3)
    other = [f"{c}, {a}, {b}", f"{a},{b},{c}", f"{a}, {b} \\text{{ and }} {c}"]
    return f"{a}, {b}, {c}", other, [f"{a}, {b}", f"{a}, {b}, {c + 20}", f"{a}, {b}, {c}, 11"]


def matrix(r: random.Random) -> Golds:
    a, b = r.randint(-9, 9), r.randint(-9, 9)
    column = "\\begin{{{0}}} {1} \\\\ {2} \\end{{{0}}}"
    other = [column.format("bmatrix", a, b), column.format("pmatrix", f"{a}", f"{b}.0")]
    wrong = [column.format("pmatrix", *v) for v in ((b, a - 20), (a, b + 1), (-a - 1, b))]
    return column.format("pmatrix", a, b), other, wrong


def percent(r: random.Random) -> Golds:
    a = r.randint(1, 99)
    return f"{a}\\%", [f"{a}", f"{a} \\%"], [f"{a + 1}\\%", f"{100 - a + 100}\\%", f"{a + 5}"]


def word(r: random.Random) -> Golds:
    words = ["even", "odd", "Evelyn", "Navin", "ellipse", "east", "circle", "line"]
    a, *rest = r.sample(words, 4)
    return f"\\text{{{a}}}", [a, f"\\textbf{{{a}}}"], [f"\\text{{{w}}}" for w in rest]


def logarithm(r: random.Random) -> Golds:
    a, b = r.randint(2, 9), r.randint(2, 60)
    other = [f"\\log_{a} {b}", f"\\frac{{\\log {b}}}{{\\log {a}}}"]
    wrong = [f"\\log_{{{a}}} {b + 1}", f"\\log_{{{a + 1}}} {b}", f"{b}", f"\\log {b}"]
    return f"\\log_{{{a}}} {b}", other, wrong


def line(r: random.Random) -> Golds:
    a, b, c = r.randint(2, 9), r.randint(1, 9), r.randint(1, 30)
    other = [f"{2 * a}x+{2 * b}y={2 * c}", f"{a}x={c}-{b}y", f"{b}y = {c} - {a}x"]
    wrong = [f"{a}x+{b}y={c + 1}", f"{a}x-{b}y={c}", f"{b}x+{a}y={c + 40}", str(c)]
    return f"{a}x + {b}y = {c}", other, wrong


def total(r: random.Random) -> Golds:
    n, m = r.randint(5, 12), r.randint(1, 5)
    value = sum(k + m for k in range(1, n + 1))
    wrong = [f"\\sum_{{k=1}}^{{{n}}} (k+{m + 1})", str(value + 1), "n", str(value - n)]
    return str(value), [f"\\sum_{{k=1}}^{{{n}}} (k+{m})", f"{value}"], wrong


KINDS: list[tuple[Callable[[random.Random], Golds], float]] = [
    (whole, 0.56), (fraction, 0.15), (root, 0.06), (pi, 0.04), (polynomial, 0.05), (pair, 0.04),
    (interval, 0.02), (several, 0.02), (matrix, 0.01), (percent, 0.02), (word, 0.01),
    (logarithm, 0.005), (line, 0.01), (total, 0.005),
]  # fmt: skip
GARBAGE = (
    "\\text{I am not sure}", "\\frac{1}{", "x^{2", "??", "\\sum_{k} a_k = S", "\\int f(t)\\,dt",
)  # fmt: skip
MATH500 = Path(__file__).parents[2] / "shared" / "data" / "math500.jsonl"


def real(golds: list[str], r: random.Random) -> Golds:
    """A gold of MATH-500, as it is; wrong are others of them."""
    gold = r.choice(golds)
    return (
        gold,
        [gold.replace("\\frac", "\\dfrac")],
        [g for g in r.sample(golds, 6) if unlike(gold, g)],
    )


def unlike(gold: str, other: str) -> bool:
    """Is another prompt's gold surely wrong? `52` for `52_8` or `\\pi` for 180 degrees is not."""
    angles = any("circ" in text for text in (gold, other)) and "\\pi" in gold + other
    return digits(gold) != digits(other) and not angles


def digits(text: str) -> str:
    """The digits of an answer, without the base of a number."""
    return "".join(c for c in text.partition("_")[0] if c.isdigit())


def math_rows(rows: int, samples: int = 32) -> pl.DataFrame:
    """Columns text, gold, right (by construction), finish_reason; `samples` rows per gold."""
    r = random.Random(0)
    kinds, weights = zip(*KINDS, strict=True)
    known = MATH500.read_text().splitlines() if MATH500.exists() else []
    known = [json.loads(line)["answer"] for line in known]
    golds = [
        real(known, r) if known and r.random() < 0.5 else kind(r)
        for kind in r.choices(kinds, weights, k=-(-rows // samples))
    ]
    texts, wanted, rights = [], [], []
    for gold, other, wrong in golds:
        others = [g for g, _, _ in r.sample(golds, 3) if unlike(gold, g)]
        mistakes = [*r.sample(wrong, len(wrong)), *others, "-8641"]
        for _ in range(samples):
            right = r.random() < 0.4
            if right:
                answer = gold if r.random() < 0.5 else r.choice(other)
            else:
                answer = mistakes[min(geometric(r), len(mistakes) - 1)]
                answer = r.choice(GARBAGE) if r.random() < 0.01 else answer
            working = f"Attempt {r.randrange(10**9)}. " + WORKING * r.randint(3, 4)
            boxed = r.random() > 0.03
            end = f"Therefore, the answer is $\\boxed{{{answer}}}$." if boxed else "So"
            rights.append(right and boxed)
            texts.append(working + end)
            wanted.append(gold)
    frame = pl.DataFrame({"text": texts, "gold": wanted, "right": rights})
    frame = frame.with_columns(finish_reason=pl.lit("stop"))
    return frame.head(rows)


def geometric(r: random.Random) -> int:
    """0 with probability 1/2, 1 with 1/4, and so on."""
    n = 0
    while r.random() < 0.5:
        n += 1
    return n


def gsm8k_rows(rows: int) -> pl.DataFrame:
    """8 samples a prompt, 500 characters of working, 10 % without an answer."""
    r = random.Random(0)
    texts, golds = [], []
    gold = 0
    working = "She has 4 boxes of 6 pens, 4 x 6 = <<4*6=24>>24 pens, and gives 3 of them away. " * 6
    for at in range(rows):
        if at % 8 == 0:
            gold = r.randint(1, 5000)
        end = f"The answer is ${gold + r.randint(0, 2):,}." if r.random() > 0.1 else "So it is"
        texts.append(f"{working}\n{end}")
        golds.append(str(gold))
    return pl.DataFrame({"text": texts, "gold": golds, "finish_reason": "stop"})


def math_verify_row(row: tuple[str, str]) -> bool:
    """One completion the way that TRL calls math-verify: nothing shared between rows."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    text, gold = row
    normalization = NormalizationConfig(
        basic_latex=True, units=True, malformed_operators=False, nits=False, boxed="all"
    )
    config = LatexExtractionConfig(
        normalization_config=normalization, boxed_match_priority=0, try_extract_without_anchor=False
    )
    wanted = parse(f"${gold}$", extraction_mode="first_match")
    return verify(wanted, parse(text, [config], extraction_mode="first_match"))


@contextmanager
def measured():
    """Seconds and peak memory in GB of this process and its children: a dict filled at the end."""
    figures: dict[str, float] = {"peak": 0.0}
    stop = threading.Event()
    own = psutil.Process()

    def watch() -> None:
        while not stop.wait(0.1):
            total = 0
            for process in (own, *own.children(recursive=True)):
                try:
                    total += process.memory_info().rss
                except psutil.Error:
                    continue
            figures["peak"] = max(figures["peak"], total / 1e9)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    started = time.perf_counter()
    try:
        yield figures
    finally:
        figures["seconds"] = time.perf_counter() - started
        stop.set()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description="rewards: ours against math-verify")
    parser.add_argument("--rows", type=int, default=240_000)
    parser.add_argument("--baseline-rows", type=int, default=6_000)
    parser.add_argument("--gsm8k-rows", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    rows = math_rows(options.rows)
    with measured() as ours:
        table, report = grade(rows, Rewards(verifier="math", workers=options.workers))
    count = min(options.baseline_rows, rows.height)
    sample = rows.with_columns(table["outcome"]).sample(count, shuffle=True, seed=0)
    pairs = sample.select("text", "gold").rows()
    math_verify_row(pairs[0])
    with measured() as single:
        verdicts = [math_verify_row(pair) for pair in pairs]
    with multiprocessing.get_context("spawn").Pool(options.workers) as processes:
        processes.map(math_verify_row, pairs[: 8 * options.workers], chunksize=8)  # warm up
        with measured() as pooled:
            processes.map(math_verify_row, pairs, chunksize=16)
    judged = rows.with_columns(table["outcome"])
    odd = judged.filter((pl.col("outcome") == "correct") != pl.col("right"))
    mistaken = odd.height
    for gold, text in odd.unique("gold").select("gold", "text").head(40).rows():
        Console(width=160).print(f"not as made: {gold} / {text[-70:]}", markup=False)
    del rows, judged
    gsm8k = gsm8k_rows(options.gsm8k_rows)
    with measured() as numbers:
        grade(gsm8k, Rewards(verifier="gsm8k"))
    note = f"on {count:,} random rows"
    show(
        [
            ("ours, math", options.rows, ours, ""),
            ("math-verify, row by row", count, single, note),
            (f"math-verify, pool of {options.workers}", count, pooled, note),
            ("ours, gsm8k", options.gsm8k_rows, numbers, ""),
        ]
    )
    explain(report, table, sample.with_columns(theirs=pl.Series(verdicts)))
    if mistaken:
        raise SystemExit(f"{mistaken} verdicts differ from what the rows were made to be")


def explain(report: VerifyReport, table: pl.DataFrame, sample: pl.DataFrame) -> None:
    """How the verdicts came about, and those that differ from math-verify's."""
    console = Console(width=140)
    console.print(
        f"{report.pairs:,} distinct pairs ({report.saved:.1%} of rows repeat one): "
        f"{report.decided:,} decided exactly, {report.judged:,} "
        f"({report.judged / max(report.pairs, 1):.1%}) by math-verify, "
        f"{report.stopped:,} stopped; {(table['outcome'] == 'correct').mean():.1%} correct"
    )
    differ = sample.filter((pl.col("outcome") == "correct") != pl.col("theirs"))
    console.print(f"verdicts unlike math-verify's: {differ.height:,} of {sample.height:,}")
    for gold, outcome, text in differ.select("gold", "outcome", "text").unique("gold").rows()[:20]:
        console.print(f"  {outcome}: {gold} / {text[-60:]}", markup=False, highlight=False)


def show(lines: list[tuple[str, int, dict[str, float], str]]) -> None:
    """One table: rows, seconds, rows/s, how many times faster ours is, peak memory."""
    table = Table("what", "rows", "seconds", "rows/s", "ours is faster by", "peak GB", "note")
    rate = lines[0][1] / lines[0][2]["seconds"]
    for name, count, figures, note in lines:
        own = count / figures["seconds"]
        ratio = f"{rate / own:.1f}x" if "math-verify" in name else ""
        table.add_row(
            name, f"{count:,}", f"{figures['seconds']:.1f}", f"{own:,.0f}", ratio,
            f"{figures['peak']:.2f}", note,
        )  # fmt: skip
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
