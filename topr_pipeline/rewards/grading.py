"""The harness: every distinct (gold, answer) is decided once, the cheap way where there is one."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import polars as pl

from topr_pipeline.experiment import Rewards
from topr_pipeline.progress import Progress, quiet
from topr_pipeline.rewards import cache, pool, verifiers
from topr_pipeline.rewards.pool import Limits, Verdict
from topr_pipeline.rewards.verifiers import Verifier

_LOG = logging.getLogger(__name__)
SLOWEST = 10
REPORT_EVERY = 10_000
LONG = 20_000
"""Longer texts, in characters, are read by the workers, where the clock stops what hangs."""
IDS = ("prompt_id", "sample_index")


@dataclass(frozen=True)
class SlowPair:
    """A pair that took long, in seconds."""

    seconds: float
    gold: str
    answer: str
    outcome: str


@dataclass(frozen=True)
class VerifyReport:
    """How the verdicts came about. `rows` hold `pairs` distinct (gold, answer) pairs, of which

    `decided` were told by exact comparison, `cached` known from earlier runs and `judged` by a
    worker; `stopped` of these ran out of time or memory, crashed or raised. Times are in seconds.
    """

    rows: int = 0
    answered: int = 0
    pairs: int = 0
    decided: int = 0
    cached: int = 0
    judged: int = 0
    stopped: int = 0
    seconds: float = 0.0
    slowest: Sequence[SlowPair] = field(default=())

    @property
    def saved(self) -> float:
        """Share of the answered rows that repeat a pair, and so cost nothing."""
        return 1 - self.pairs / self.answered if self.answered else 0.0


def grade(
    rows: pl.DataFrame,
    rewards: Rewards,
    cache_folder: Path | None = None,
    progress: Progress = quiet,
) -> tuple[pl.DataFrame, VerifyReport]:
    """Grade `rows` (columns text, gold, finish_reason, and the IDS if any), in order.

    Returns the IDS and the columns answer, outcome, reward, verifier and detail, and how it went.
    Raises ToprError for a verifier that is unknown or cannot be imported.
    """
    started = time.monotonic()
    verifier = verifiers.find(rewards.verifier)
    limits = Limits(
        rewards.timeout_seconds, rewards.memory_mib, rewards.workers or pool.available_cpus()
    )
    found = _read(rows, verifier, progress)
    distinct = found.select("found", "wanted", "long").drop_nulls().unique(maintain_order=True)
    verdicts: list[Verdict] = []
    counts = Counter[str]()
    all_read = partial(progress, rows.height, rows.height)
    parts = [distinct.filter(~pl.col("long")), distinct.filter("long")]
    for part, judge in zip(parts, (verifier, verifiers.in_worker(verifier)), strict=True):
        pairs = part.select("found", "wanted").rows()
        verdicts += _decide(pairs, judge, limits, cache_folder, all_read, counts)
    decided = pl.concat(parts).with_columns(
        pl.Series("outcome", [v.outcome for v in verdicts], pl.String),
        pl.Series("own_answer", [v.answer for v in verdicts], pl.String),
        pl.Series("detail", [v.detail for v in verdicts], pl.String),
    )
    on = ["found", "wanted", "long"]
    table = _table(found.join(decided, on=on, how="left", maintain_order="left"))
    table = table.with_columns(
        reward=pl.col("outcome").replace_strict(
            rewards.values.model_dump(), return_dtype=pl.Float64
        ),
        verifier=pl.lit(verifier.label),
        answer=pl.when(pl.col("long") | verifier.whole).then("own_answer").otherwise("found"),
    )
    report = VerifyReport(
        rows=rows.height,
        answered=found.drop_nulls(["found", "wanted"]).height,
        pairs=distinct.height,
        seconds=time.monotonic() - started,
        slowest=_slowest(decided.select("found", "wanted").rows(), verdicts),
        **counts,
    )
    ids = [column for column in IDS if column in rows.columns]
    return table.select(*ids, "answer", "outcome", "reward", "verifier", "detail"), report


def _read(rows: pl.DataFrame, verifier: Verifier, progress: Progress) -> pl.DataFrame:
    """The ids of `rows` with what is compared: found, wanted, fault, cut and long.

    Long texts, and all of a row whose gold is long, are left as they are for a worker to read.
    """
    long = pl.any_horizontal(pl.col("text", "gold").str.len_chars() > LONG).fill_null(False)
    columns = rows.select("text", "gold", long=long & (not verifier.whole))
    golds: dict[tuple[str | None, bool], str | None] = {}
    faults: dict[int, str] = {}
    found: list[str | None] = []
    whole = verifiers.in_worker(verifier)
    for at, (text, gold, is_long) in enumerate(columns.iter_rows(), 1):
        reader = whole if is_long else verifier
        try:
            if (gold, is_long) not in golds:
                golds[gold, is_long] = None if gold is None else reader.gold(gold)
        except Exception:  # one gold may fail nothing but its own rows: it "cannot be read"
            golds[gold, is_long] = None
        try:
            found.append(None if text is None else reader.extract(text))
        except Exception as error:  # one text may fail nothing but its own row
            found.append(None)
            faults[at - 1] = f"reading it raised {type(error).__name__}: {error}"
        if at % REPORT_EVERY == 0 or at == rows.height:
            progress(at, rows.height)
    wanted = [golds[gold, is_long] for _, gold, is_long in columns.iter_rows()]
    return rows.select(
        *(column for column in IDS if column in rows.columns),
        pl.Series("wanted", wanted, pl.String),
        pl.Series("found", found, pl.String),
        pl.Series("fault", [faults.get(at) for at in range(rows.height)], pl.String),
        columns["long"],
        cut=pl.col("finish_reason") == "length",
    )


def _decide(
    pairs: Sequence[tuple[str, str]],
    verifier: Verifier,
    limits: Limits,
    cache_folder: Path | None,
    progress: Callable[..., None],
    counts: Counter[str],
) -> list[Verdict]:
    """A verdict for each (answer, gold): by comparison, else from the cache, else by a worker.

    Adds to `counts` how many were told in which way.
    """
    verdicts: dict[int, Verdict] = {}
    raised = 0
    for at, (answer, gold) in enumerate(pairs):
        started = time.perf_counter()
        try:
            equal = verifier.compare(gold, answer)
        except Exception as error:  # one pair may fail nothing but its own rows
            detail = f"comparing raised {type(error).__name__}: {error}"
            verdicts[at] = Verdict("unverifiable", detail=detail)
            raised += 1
            continue
        if equal is not None:
            outcome = "correct" if equal else "incorrect"
            verdicts[at] = Verdict(outcome, seconds=time.perf_counter() - started)
    counts["decided"] += len(verdicts) - raised
    open_ = [at for at in range(len(pairs)) if at not in verdicts]
    hard = [pairs[at] for at in open_]
    known = cache.lookup(cache_folder, verifier.key, hard)
    new = [at for at in range(len(hard)) if at not in known]
    judged = _judged([hard[at] for at in new], verifier, limits, cache_folder, progress)
    verdicts |= {open_[at]: verdict for at, verdict in known.items()}
    verdicts |= {open_[new[at]]: verdict for at, verdict in judged.items()}
    counts["cached"] += len(known)
    counts["judged"] += len(judged)
    counts["stopped"] += sum(not verdict.lasting for verdict in judged.values())
    return [verdicts[at] for at in range(len(pairs))]


def _judged(
    pairs: Sequence[tuple[str, str]],
    verifier: Verifier,
    limits: Limits,
    cache_folder: Path | None,
    progress: Callable[..., None],
) -> Mapping[int, Verdict]:
    """Verdicts of workers; what they found is kept even when the run is interrupted."""
    judged: dict[int, Verdict] = {}
    if not pairs or verifier.judge is None:
        return judged
    if fault := cache.writable(cache_folder, verifier.key):
        _LOG.warning("rewards: verdicts are not kept: %s", fault)
        cache_folder = None
    try:
        for at, verdict in pool.judge(verifier.judge, pairs, limits):
            judged[at] = _blamed(verdict, pairs[at][1], verifier)
            progress(judged=len(judged), to_judge=len(pairs))
    finally:
        try:
            cache.store(cache_folder, verifier.key, pairs, judged)
        except OSError as error:  # hours of judging are worth more than their cache
            _LOG.warning("rewards: verdicts could not be kept in %s: %s", cache_folder, error)
    return judged


def _blamed(verdict: Verdict, gold: str, verifier: Verifier) -> Verdict:
    """Beside a clear gold, an answer that cannot be judged in time is wrong: else a policy could

    dodge its punishment with ever larger answers.
    """
    failed = not (verdict.lasting or verdict.starved) and verdict.detail != pool.NOT_TRIED
    if failed and verifier.clear is not None and verifier.clear(gold):
        return replace(verdict, outcome="incorrect")
    return verdict


def _table(rows: pl.DataFrame) -> pl.DataFrame:
    """Outcomes of rows: those without gold or answer first, then what the pair's verdict says."""
    no_answer = pl.col("outcome").is_null() | (pl.col("outcome") == "invalid")
    outcome = (
        pl.when(pl.col("wanted").is_null() | pl.col("fault").is_not_null())
        .then(pl.lit("unverifiable"))
        .when(no_answer & pl.col("cut"))
        .then(pl.lit("truncated"))
        .when(no_answer)
        .then(pl.lit("invalid"))
        .otherwise(pl.col("outcome"))
    )
    detail = pl.when(pl.col("wanted").is_null()).then(pl.lit("the gold cannot be read"))
    return rows.with_columns(
        outcome=outcome,
        detail=detail.otherwise(pl.coalesce("fault", "detail")),
        answer=pl.col("found"),
    )


def _slowest(pairs: Sequence[tuple[str, str]], verdicts: Sequence[Verdict]) -> list[SlowPair]:
    order = sorted(range(len(pairs)), key=lambda at: -verdicts[at].seconds)[:SLOWEST]
    return [SlowPair(verdicts[at].seconds, *pairs[at][::-1], verdicts[at].outcome) for at in order]
