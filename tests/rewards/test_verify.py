import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import polars as pl
import pytest

from topr_pipeline import tables
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import RewardLimits, Rewards, RewardValues
from topr_pipeline.rewards import (
    checks,
    examples,
    grade,
    pool,
    summarise,
    symbolic,
    verifiers,
    verify,
    verify_reported,
)

COMPLETIONS = {
    "correct": "The answer is 5",
    "incorrect": "The answer is 6",
    "invalid": "I do not know",
    "truncated": "First we take",
}
OWN = "python: tests.rewards.fake_verifiers:same_text"


def solutions(texts: list[str], reasons: list[str] | None = None, per_prompt: int = 2):
    return pl.DataFrame(
        {
            "prompt_id": [f"p{at // per_prompt}" for at in range(len(texts))],
            "sample_index": [at % per_prompt for at in range(len(texts))],
            "text": texts,
            "finish_reason": reasons or ["stop"] * len(texts),
        }
    )


def prompts(golds: list[str]) -> pl.DataFrame:
    ids = [f"p{at}" for at in range(len(golds))]
    return pl.DataFrame(
        {"prompt_id": ids, "gold": golds}, schema=dict.fromkeys(("prompt_id", "gold"), pl.String)
    )


def four() -> pl.DataFrame:
    return solutions(list(COMPLETIONS.values()), ["stop", "stop", "stop", "length"])


def test_each_outcome_gets_its_reward():
    values = RewardValues(correct=2.0, incorrect=-0.5, invalid=None, truncated=-3.0)
    table = verify(four(), prompts(["5", "5"]), Rewards(values=values))
    assert table["outcome"].to_list() == list(COMPLETIONS)
    assert table["reward"].to_list() == [2.0, -0.5, None, -3.0]
    assert table["answer"].to_list() == ["5", "6", None, None]
    assert table.schema == tables.REWARDS.schema


def test_an_answer_stopped_by_length_is_graded_all_the_same():
    rows = solutions(["The answer is 5. And now"], ["length"])
    assert verify(rows, prompts(["5"]), Rewards())["outcome"].to_list() == ["correct"]


@pytest.mark.parametrize("gold", ["", "  ", "no number"])
def test_nothing_equals_a_gold_that_cannot_be_read(gold):
    rows = solutions(["", "The answer is 5", gold, "The answer is "])
    table = verify(rows, prompts([gold, gold]), Rewards())
    assert table["outcome"].unique().to_list() == ["unverifiable"]
    assert table["reward"].null_count() == 4
    assert table["detail"].unique().to_list() == ["the gold cannot be read"]


def test_rows_are_joined_by_id_whatever_their_order():
    rows = solutions([f"The answer is {n // 2}" for n in range(8)])
    golds = prompts(["0", "1", "2", "3"])
    table = verify(rows.sample(8, shuffle=True, seed=3), golds.reverse(), Rewards())
    assert (
        table.select("prompt_id", "sample_index").rows()
        == rows.sort("prompt_id", "sample_index").select("prompt_id", "sample_index").rows()
    )
    assert table["outcome"].unique().to_list() == ["correct"]


def test_solutions_without_a_prompt_are_refused():
    with pytest.raises(ToprError, match="1 solutions belong to no prompt, such as 'p1'"):
        verify(solutions(["a", "b", "c"]), prompts(["5"]), Rewards())


def test_rows_given_twice_are_refused():
    golds = prompts(["5"])
    with pytest.raises(ToprError, match=r"the prompts hold prompt_id .'p0',. more than once"):
        verify(solutions(["a"]), pl.concat([golds, golds]), Rewards())
    twice = pl.concat([solutions(["a"]), solutions(["b"])])
    with pytest.raises(ToprError, match=r"the solutions hold prompt_id/sample_index .'p0', 0."):
        verify(twice, golds, Rewards())


def test_a_gold_that_makes_the_verifier_raise_costs_its_rows_alone(monkeypatch):
    def gold(text: str) -> str:
        return {"5": text}[text]

    fake = verifiers.Verifier("fake", "1", str.strip, gold, str.__eq__)
    monkeypatch.setattr(verifiers, "find", lambda _: fake)
    rows = pl.DataFrame({"text": ["5", "5"], "gold": ["5", "bad"], "finish_reason": "stop"})
    table, report = grade(rows, Rewards())
    assert table["outcome"].to_list() == ["correct", "unverifiable"]
    assert report.decided == 1


def test_empty_tables_give_an_empty_table():
    table, report = verify_reported(four().head(0), prompts([]), Rewards(verifier="math"))
    assert table.schema == tables.REWARDS.schema
    assert (table.height, report.rows, report.saved) == (0, 0, 0.0)


def test_equal_pairs_are_verified_once(monkeypatch):
    sent = []

    def judge(function, pairs, limits):
        sent.extend(pairs)
        return ((at, pool.Verdict("correct")) for at in range(len(pairs)))

    monkeypatch.setattr(pool, "judge", judge)
    rows = solutions(["a", "b", "a", "a", "b", "a"], per_prompt=6)
    _, report = verify_reported(rows, prompts(["a"]), Rewards(verifier=OWN))
    assert sorted(sent) == [("a", "a"), ("b", "a")]
    assert (report.rows, report.pairs, report.judged) == (6, 2, 2)
    assert report.saved == pytest.approx(4 / 6)


def test_a_users_function_gets_the_whole_completion():
    table, report = verify_reported(
        solutions([" Paris ", "Rome", "I say Paris"], ["stop", "length", "stop"], per_prompt=3),
        prompts(["Paris"]),
        Rewards(verifier=OWN),
    )
    assert table["outcome"].to_list() == ["correct", "incorrect", "incorrect"]
    assert table["answer"].null_count() == 3
    assert report.judged == 3


def test_an_answer_that_a_users_function_gives_is_kept():
    rows = solutions(["('correct', '42')", "'invalid'", "'invalid'"], ["stop", "stop", "length"], 3)
    own = Rewards(verifier="python: tests.rewards.fake_verifiers:every_kind")
    table = verify(rows, prompts(["x"]), own)
    assert table["answer"].to_list() == ["42", None, None]
    assert table["outcome"].to_list() == ["correct", "invalid", "truncated"]


def test_an_error_in_a_verifier_of_ours_costs_its_row_alone(monkeypatch):
    def extract(text: str) -> str | None:
        if text == "bad":
            raise RuntimeError("no")
        return text

    def compare(gold: str, answer: str) -> bool:
        if answer == "worse":
            raise KeyError(answer)
        return gold == answer

    fake = verifiers.Verifier("fake", "1", extract, str.strip, compare)
    monkeypatch.setattr(verifiers, "find", lambda _: fake)
    rows = pl.DataFrame({"text": ["a", "bad", "worse"], "gold": "a", "finish_reason": "stop"})
    table, _ = grade(rows, Rewards())
    assert table["outcome"].to_list() == ["correct", "unverifiable", "unverifiable"]
    assert table["detail"].to_list() == [
        None,
        "reading it raised RuntimeError: no",
        "comparing raised KeyError: 'worse'",
    ]


def test_verdicts_of_workers_are_kept_between_runs(tmp_path, monkeypatch):
    rows, golds = solutions(["1", "7", "2", "1"]), prompts(["1", "1"])
    own = Rewards(verifier="python: tests.rewards.fake_verifiers:raises_on_7")
    first, before = verify_reported(rows, golds, own, cache=tmp_path)
    second, after = verify_reported(rows, golds, own, cache=tmp_path)
    assert first.equals(second)
    assert (before.judged, before.cached, before.stopped) == (3, 0, 1)
    assert (after.judged, after.cached) == (1, 2)  # what raised is tried again


def test_math_in_another_thread_gives_the_same_table():
    rows = solutions(
        ["$\\boxed{x+y=1}$", "$\\boxed{\\log_2 8}$", "\\boxed{3}", "\\boxed{4}"], None, 4
    )
    golds, spec = prompts(["\\log_{2}(8)"]), Rewards(verifier="math", workers=1, timeout_seconds=60)
    here = verify(rows, golds, spec)
    with ThreadPoolExecutor(1) as threads:
        there = threads.submit(verify, rows, golds, spec).result()
    assert here.equals(there)
    assert here["outcome"].to_list() == ["incorrect", "correct", "correct", "incorrect"]


@pytest.mark.parametrize(
    ("gold", "starved", "outcome"),
    [
        ("5", False, "incorrect"),
        ("(1,\\sqrt{2})", False, "incorrect"),
        ("5", True, "unverifiable"),
        ("\\sum_{k} a_k", False, "unverifiable"),
    ],
)
def test_an_answer_too_large_to_judge_is_wrong_beside_a_plain_gold(
    gold, starved, outcome, monkeypatch
):
    stopped = pool.Verdict("unverifiable", lasting=False, starved=starved)
    monkeypatch.setattr(pool, "judge", lambda *_: enumerate([stopped]))
    rows = solutions(["$\\boxed{\\prod_{k=1}^{10^9} k}$"])
    table = verify(rows, prompts([gold]), Rewards(verifier="math"))
    assert table["outcome"].to_list() == [outcome]


def test_a_comparison_that_runs_out_of_memory_is_no_verdict(monkeypatch):
    grader = symbolic._library().grader
    assert symbolic.equal("\\log_3 8", "\\log_2 8") is False

    def full(*_):
        raise MemoryError

    monkeypatch.setattr(grader, "simplify", full)
    with pytest.raises(MemoryError):
        symbolic.equal("\\log_3 9", "\\log_2 9")


def test_an_error_of_a_module_that_came_late_is_math_verifys_to_catch(monkeypatch):
    class Late(Exception):
        """As sympy has in modules that it imports when it needs them."""

    def fails(*_):
        raise Late

    grader = symbolic._library().grader
    monkeypatch.setattr(grader, "simplify", fails)
    assert symbolic.equal("\\log_3 7", "\\log_2 7") is False


def test_preparing_pays_for_the_imports_of_math_verify():
    code = "import sys; from topr_pipeline.rewards import symbolic; symbolic.prepare()"
    said = f"{code}; print('math_verify.grader' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"


def test_a_cache_that_cannot_be_written_is_said_before_the_work(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    own = Rewards(verifier=OWN)
    table = verify(solutions(["1", "2"]), prompts(["1"]), own, cache=tmp_path / "file")
    assert table["outcome"].to_list() == ["correct", "incorrect"]
    assert "verdicts are not kept" in caplog.text


def test_names_that_are_no_verifier_are_refused():
    with pytest.raises(ToprError, match="'python: no_such_module_here:f'"):
        verify(four(), prompts(["5", "5"]), Rewards(verifier="python: no_such_module_here:f"))
    with pytest.raises(ToprError, match=r"reasoning_gym needs .*pip install"):
        verifiers.find("reasoning_gym")
    with pytest.raises(ToprError, match="'nope' is not known; accepted are gsm8k, math"):
        verifiers.find("nope")


def test_version_of_a_users_function_follows_its_source(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    labels = []
    for number in (1, 2):
        (tmp_path / f"own_{number}.py").write_text(f"def f(c, g): return {number}\n")
        labels.append(verifiers.find(f"python:own_{number}:f").version)
    assert labels[0] != labels[1]


def test_checks_block_above_the_limits():
    table = verify(four(), prompts(["5", "5"]), Rewards())
    spec = Rewards(limits=RewardLimits(unverifiable=0.0, truncated=0.2, invalid=0.25))
    found = {check.name: check for check in checks(table, spec)}
    assert {name: check.passed for name, check in found.items()} == {
        "unverifiable_share": True,
        "truncated_share": False,
        "invalid_share": True,
    }
    assert found["truncated_share"].figures == {"share": 0.25, "limit": 0.2, "count": 1}
    assert "more than rewards.limits.truncated" in found["truncated_share"].message


def test_summary_counts_outcomes_and_prompts():
    rows = solutions([f"The answer is {n}" for n in (5, 5, 5, 6, 1, 2)] + ["?", "The answer is 5"])
    summary = summarise(verify(rows, prompts(["5"] * 4), Rewards()))
    assert summary.counts["correct"] == 4 and summary.counts["invalid"] == 1
    assert summary.shares["incorrect"] == 3 / 8
    assert (summary.none_correct, summary.all_correct, summary.prompts) == (1, 1, 4)
    assert summary.solve_rates == (1, 0, 0, 0, 0, 2, 0, 0, 0, 1)
    assert (summary.unrewarded, summary.mean_reward) == (0, 0.0)


def test_examples_show_a_few_of_each_outcome():
    rows, golds = solutions(["The answer is 5"] * 8 + ["none"]), prompts(["5"] * 5)
    shown = examples(verify(rows, golds, Rewards()), rows, golds)
    assert shown.columns == ["outcome", "answer", "gold", "detail", "text"]
    assert shown["outcome"].value_counts(sort=True).rows() == [("correct", 3), ("invalid", 1)]
