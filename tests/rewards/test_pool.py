import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.rewards import fake_verifiers
from topr_pipeline.errors import ToprError
from topr_pipeline.rewards import pool
from topr_pipeline.rewards.pool import Limits, Verdict

SHORT = Limits(seconds=0.4, memory_mib=400, workers=2)


def judged(name: str, answers: list[str], limits: Limits = SHORT) -> list[Verdict]:
    pairs = [(answer, "1") for answer in answers]
    found = dict(pool.judge(f"tests.rewards.fake_verifiers:{name}", pairs, limits))
    assert sorted(found) == list(range(len(pairs)))
    return [found[at] for at in range(len(pairs))]


NUMBERS = [str(n) for n in range(1, 16)]
EXPECTED = ["correct" if n == "1" else "incorrect" for n in NUMBERS]


def with_sevens(outcome: str) -> list[str]:
    return [outcome if int(n) % 7 == 0 else e for n, e in zip(NUMBERS, EXPECTED, strict=True)]


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("raises_on_7", "raised RuntimeError: no 7"),
        ("exits_on_7", "raised SystemExit: 1"),
        ("crashes_on_7", "crashed (exit code 11)"),
        ("sleeps_on_7", "stopped after 0.4 s"),
        ("batch_raises_on_7", "raised RuntimeError: no 7"),
        ("batch_sleeps_on_7", "stopped after 0.4 s"),
        ("batch_drops_7", "raised ValueError: returned 0 results for 1 completions"),
    ],
)
def test_a_failing_row_is_unverifiable_and_costs_no_other_row(name, detail):
    verdicts = judged(name, NUMBERS)
    assert [v.outcome for v in verdicts] == with_sevens("unverifiable")
    assert verdicts[6].detail == detail
    assert [v.lasting for v in verdicts] == [int(n) % 7 != 0 for n in NUMBERS]


def test_wrong_number_of_results_is_never_scored():
    verdicts = judged("batch_two_too_many", NUMBERS[:3])
    assert {v.outcome for v in verdicts} == {"unverifiable"}
    assert verdicts[0].detail == "raised ValueError: returned 3 results for 1 completions"


def test_a_function_that_never_returns_is_given_up(monkeypatch):
    monkeypatch.setattr(pool, "GIVE_UP", 3)
    verdicts = judged("never_returns", NUMBERS, Limits(0.1, 400, 2))
    assert {v.outcome for v in verdicts} == {"unverifiable"}
    details = [v.detail for v in verdicts]
    assert details.count("not tried, after too many others were stopped") >= len(NUMBERS) - 4
    assert "stopped after 0.1 s" in details


def test_a_flood_of_hanging_pairs_is_given_up(monkeypatch):
    monkeypatch.setattr(pool, "MOST_KILLS", 2)
    verdicts = judged("sleeps_on_7", ["1", "7", "1", "7", "1", "7"] * 3, Limits(0.2, 400, 1))
    details = [v.detail for v in verdicts]
    assert details.count("stopped after 0.2 s") == 2
    assert "not tried, after too many others were stopped" in details


def test_memory_of_a_worker_stays_under_its_limit():
    verdicts = judged("grows", ["1", "grow", "1"], Limits(20.0, 300, 1))
    assert [v.outcome for v in verdicts] == ["correct", "unverifiable", "correct"]
    assert verdicts[1].detail == "needed more memory than its limit"


@pytest.mark.parametrize(
    ("returned", "outcome"),
    [
        ("True", "correct"),
        ("False", "incorrect"),
        ("1", "correct"),
        ("0.0", "incorrect"),
        ("'invalid'", "invalid"),
        ("'truncated'", "truncated"),
        ("('correct', '42')", "correct"),
        ("nan", "unverifiable"),
        ("None", "unverifiable"),
        ("0.5", "unverifiable"),
        ("-1", "unverifiable"),
        ("'yes'", "unverifiable"),
        ("'1'", "unverifiable"),
        ("[True]", "unverifiable"),
        ("('correct', 42)", "unverifiable"),
        ("10**400", "unverifiable"),
    ],
)
def test_only_clear_results_are_scored(returned, outcome):
    from topr_pipeline.rewards import worker

    reply = worker.verdict(fake_verifiers.every_kind(returned, ""))
    assert reply["outcome"] == outcome
    assert ("detail" in reply) == (outcome == "unverifiable")


def test_printing_does_not_disturb_the_replies():
    assert [v.outcome for v in judged("prints", ["1", "2"])] == ["correct", "incorrect"]


def test_batches_and_single_rows_agree():
    answers = NUMBERS * 10
    batch, single = judged("batch_same", answers), judged("same_text", answers)
    assert [v.outcome for v in batch] == [v.outcome for v in single] == EXPECTED * 10


def test_same_verdicts_from_another_thread():
    with ThreadPoolExecutor(2) as threads:
        runs = list(threads.map(lambda _: judged("raises_on_7", NUMBERS), range(2)))
    assert [[v.outcome for v in run] for run in runs] == [with_sevens("unverifiable")] * 2


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("no_such_module_anywhere:f", "ModuleNotFoundError"),
        ("tests.rewards.fake_verifiers:no_such_function", "AttributeError"),
        ("tests.rewards.fake_verifiers:not_a_function", "int, not a function"),
    ],
)
def test_what_cannot_be_imported_is_a_plain_error(path, said):
    with pytest.raises(ToprError, match=f"rewards.verifier: {path} cannot be used.*{said}"):
        list(pool.judge(path, [("1", "1")], SHORT))


def test_no_process_outlives_its_pool():
    before = children()
    stream = pool.judge(
        "tests.rewards.fake_verifiers:sleeps_on_7", [("1", "1"), ("7", "1")] * 4, Limits(30.0)
    )
    next(stream)
    assert children() > before
    stream.close()
    assert children() == before


def children() -> set[str]:
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        return set(file.read().split())


def test_nothing_starts_for_no_pairs():
    assert judged("never_returns", []) == []


def test_same_verdicts_in_a_process_of_a_pool():
    with multiprocessing.get_context("spawn").Pool(1) as processes:
        verdicts = processes.apply(judged, ("raises_on_7", NUMBERS))
    assert [v.outcome for v in verdicts] == with_sevens("unverifiable")


@pytest.mark.parametrize("name", ["stops_itself_on_7", "sleeps_on_7"])
def test_a_worker_that_does_not_read_blocks_nothing(name):
    long = "1" + " " * 300_000
    verdicts = judged(name, ["7", long, long, "2"], Limits(1.0, 400, 1))
    assert [v.outcome for v in verdicts[:1] + verdicts[3:]] == ["unverifiable", "incorrect"]
    assert verdicts[0].detail == "stopped after 1 s"


def test_what_a_verifier_started_is_stopped_with_it(tmp_path):
    (verdict,) = judged("starts_a_process", [str(tmp_path / "pid")], Limits(1.0, 0, 1))
    assert verdict.detail == "stopped after 1 s"
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_verifier_cannot_read_the_requests():
    answers = ["1", "2", "1", "3"]
    assert [v.outcome for v in judged("reads_input", answers)] == [
        "correct" if a == "1" else "incorrect" for a in answers
    ]


def test_a_verifier_cannot_forge_replies():
    verdicts = judged("forges", NUMBERS)
    assert [v.outcome for v in verdicts] == with_sevens("unverifiable")
    assert verdicts[6].detail == "wrote to the pool's pipe"


def test_a_worker_that_does_not_start_again_fails_no_other_row(tmp_path, monkeypatch):
    monkeypatch.setenv("TOPR_TEST_STARTED", str(tmp_path / "started"))
    verdicts = judged("starts_once", ["1", "7", "1"] * 3, Limits(5.0, 400, 1))
    assert verdicts[0].outcome == "correct"
    assert verdicts[-1].detail == "not tried, after too many others were stopped"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_a_process_that_is_stopped(how):
    script = (
        "from topr_pipeline.rewards import pool\n"
        "pairs = [('1', '1'), ('7', '1')]\n"
        "judged = pool.judge('tests.rewards.fake_verifiers:tells_pid', pairs, pool.Limits(60.0))\n"
        "print(next(judged)[1].answer, flush=True)\n"
        "next(judged)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=environment,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert not gone(worker, seconds=0.0)
        parent.send_signal(how)
        parent.wait()
    assert gone(worker)


def gone(pid: int, seconds: float = 5.0) -> bool:
    """Is the process no more, or a zombie, within so many seconds?"""
    until = time.monotonic() + seconds
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z" or time.monotonic() > until:
            return state == "Z"
        time.sleep(0.02)
