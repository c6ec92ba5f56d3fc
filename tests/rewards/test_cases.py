"""Which answer counts: the table in tests/cases, and more tables where there are any beside it."""

import json
from pathlib import Path

import polars as pl
import pytest

from topr_pipeline.experiment import Rewards
from topr_pipeline.rewards import grade, pool, verifiers

OWN = Path(__file__).parents[1] / "cases" / "verify_cases.jsonl"
SHARED = Path(__file__).parents[2].parent / "shared"


DIFFERENT = (
    "5", "-5", "9/4", "\\frac{1}{4}", "\\sqrt{5}", "5\\pi", "x^2-9", "y^2-9", "|x|", "x", "(1,2)",
    "[1,2)", "2,1,3", "x<5", "2x=5", "52_8", "28\\%", "\\text{even}", "f(x)", "f'(x)", "\\infty",
    "e^{-200}", "0", "\\begin{pmatrix}1\\\\2\\end{pmatrix}", "7\\text{ cm}^2", "7\\text{ cm}",
    "ABC", "CBA",
    "3:1", "12:00",
)  # fmt: skip


def own_cases() -> list[tuple[str, str, str, str]]:
    rows = [json.loads(line) for line in OWN.read_text().splitlines()]
    return [(r["verifier"], r["completion"], r["gold"], r["outcome"]) for r in rows]


def shared_cases() -> list[tuple[str, str, str, str]]:
    """Rows of ../shared as (verifier, completion, gold, outcome), undecided ones left out."""
    path = SHARED / "cases" / "verify_cases.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    outcome = {True: "correct", False: "not correct"}
    decided = [r for r in rows if r["expected"] is not None]
    return [(r["style"], r["completion"], r["gold"], outcome[r["expected"]]) for r in decided]


def outcomes(cases: list[tuple[str, str, str, str]]) -> list[str]:
    """The outcome of each case, by the verifier that it names."""
    frame = pl.DataFrame(cases, schema=["verifier", "text", "gold", "want"], orient="row")
    frame = frame.with_row_index("at").with_columns(finish_reason=pl.lit("stop"))
    parts = []
    for (name,), rows in frame.group_by("verifier"):
        table, _ = grade(rows, Rewards(verifier=str(name), timeout_seconds=60))
        parts.append(rows.select("at").with_columns(table["outcome"]))
    return pl.concat(parts).sort("at")["outcome"].to_list()


def test_every_case_has_its_outcome():
    cases = own_cases() + shared_cases()
    wrong = [
        (case, got)
        for case, got in zip(cases, outcomes(cases), strict=True)
        if got not in (("incorrect", "invalid") if case[3] == "not correct" else (case[3],))
    ]
    assert wrong == []


@pytest.mark.parametrize("verifier", sorted({case[0] for case in own_cases()}))
def test_table_has_right_and_wrong_answers_for_each_verifier(verifier):
    found = {case[3] for case in own_cases() if case[0] == verifier}
    assert {"correct", "incorrect", "invalid", "unverifiable"} <= found


def test_cases_are_told_apart_without_symbolic_work_but_for_a_few():
    math = verifiers.find("math")
    undecided = [
        case
        for case in own_cases()
        if case[0] == "math"
        and (gold := math.gold(case[2])) is not None
        and (answer := math.extract(case[1])) is not None
        and math.compare(gold, answer) is None
    ]
    assert 0 < len(undecided) < 20


def test_golds_equal_themselves_and_not_each_other():
    math = verifiers.find("math")
    golds = sorted({g for v, _, gold, _ in own_cases() if v == "math" and (g := math.gold(gold))})
    assert [g for g in golds if math.compare(g, g) is not True] == []
    alike = [(a, b) for a in DIFFERENT for b in DIFFERENT if a != b and math.compare(a, b)]
    assert alike == [("(1,2)", DIFFERENT[23]), (DIFFERENT[23], "(1,2)")]  # a vector is a tuple


def test_gsm8k_solutions_are_right_by_their_own_golds():
    solutions = ["48/2 = <<48/2=24>>24 clips.\n48+24 = <<48+24=72>>72 in all.\n#### 72"]
    path = SHARED / "data" / "gsm8k" / "train.jsonl"
    if path.exists():
        solutions += [json.loads(line)["answer"] for line in path.read_text().splitlines()]
    golds = [s.rsplit("####", 1)[1].strip() for s in solutions]
    rows = pl.DataFrame({"text": solutions, "gold": golds, "finish_reason": "stop"})
    table, report = grade(rows, Rewards(verifier="gsm8k"))
    assert table["outcome"].unique().to_list() == ["correct"]
    assert report.rows == len(solutions)


def test_math_solutions_are_right_by_their_own_golds(monkeypatch):
    def no_worker(*_):
        raise AssertionError("exact comparison decides all of these")

    monkeypatch.setattr(pool, "judge", no_worker)
    pairs = [("So $\\boxed{\\left( 3, \\frac{\\pi}{2} \\right)}.$", "(3, \\tfrac{\\pi}2)")]
    path = SHARED / "data" / "math500.jsonl"
    if path.exists():
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        pairs += [(r["solution"], r["answer"]) for r in rows]
    frame = pl.DataFrame(pairs, schema=["text", "gold"], orient="row")
    table, _ = grade(frame.with_columns(finish_reason=pl.lit("stop")), Rewards(verifier="math"))
    assert table["outcome"].unique().to_list() == ["correct"]
