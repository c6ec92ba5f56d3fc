"""The same verdicts wherever the harness runs."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import dagster as dg
import polars as pl
import pytest

from topr_pipeline.experiment import Rewards
from topr_pipeline.rewards import grade

PAIRS = [
    ("$\\boxed{\\frac{6}{8}}$", "0.75"),
    ("$\\boxed{\\log_2 8}$", "\\log_{2}(8)"),
    ("$\\boxed{\\log_3 8}$", "\\log_{2}(8)"),
    ("$\\boxed{\\sum_{k=1}^{4} k}$", "10"),
    ("$\\boxed{9!!!!!!!!}$", "10"),
    ("no answer", "10"),
    ("$\\boxed{10}$", "{"),
]
OUTCOMES = "correct correct incorrect correct incorrect invalid unverifiable".split()  # noqa: SIM905


def outcomes() -> list[str]:
    rows = pl.DataFrame(PAIRS, schema=["text", "gold"], orient="row")
    rows = rows.with_columns(finish_reason=pl.lit("stop"))
    table, _ = grade(rows, Rewards(verifier="math", workers=1, timeout_seconds=60))
    return table["outcome"].to_list()


def in_a_thread() -> list[str]:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(outcomes).result()


def in_a_process_pool() -> list[str]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        return processes.submit(outcomes).result()


@dg.op
def judge(context: dg.OpExecutionContext) -> list[str]:
    return outcomes()


@dg.job
def judging() -> None:
    judge()


def in_a_dagster_step() -> list[str]:
    return judging.execute_in_process().output_for_node("judge")


@pytest.mark.parametrize("place", [outcomes, in_a_thread, in_a_process_pool, in_a_dagster_step])
def test_same_verdicts(place):
    assert place() == OUTCOMES
