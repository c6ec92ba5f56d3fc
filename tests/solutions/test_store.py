"""The sample store at its edges: order, memory, many writers, broken files, full disks."""

import errno
import itertools
import os
import resource
import shutil
import threading
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pyarrow.parquet as pq
import pytest

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Sampling
from topr_pipeline.solutions import Asked, Completion, Request, Sampled, sample, sample_part, store
from topr_pipeline.tables import PROMPTS, SOLUTIONS
from topr_pipeline.testing import FakeEngine

SAMPLING = Sampling(engine="fake", samples_per_prompt=4, max_tokens=16, shard_size=6, batch_size=3)
NAMES = "ebdac"


def prompts(names: Sequence[str]) -> pl.DataFrame:
    rows = {"prompt_id": list(names), "prompt": [f"How much is {n} ?" for n in names]}
    said = {"gold": "1", "source": "test", "split": "train", "meta": "{}"}
    return PROMPTS.conform(
        pl.DataFrame(rows).with_columns(pl.lit(v).alias(k) for k, v in said.items())
    )


def asked(folder: Path, names: Sequence[str] = NAMES, **keys: Any) -> Asked:
    sampling = SAMPLING.model_copy(update=keys)
    return Asked(prompts(names), sampling, Path("policy"), "v1", folder / "samples", 7)


def run(folder: Path, engine: FakeEngine | None = None, **change: Any) -> Sampled:
    return sample(asked(folder, **change), engine or FakeEngine(), folder / "out.parquet")


def shards(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.glob("samples/*/*.parquet")}


def files(folder: Path) -> set[Path]:
    return {p for p in folder.rglob("*") if p.is_file()}


def said(prompt: str, i: int) -> str:
    return f"{prompt} {'so ' * i} The answer is {i}"


# ---------------------------------------------------------------------------------------- the file

WAYS = {
    "afresh": [{}],
    "other shards": [{"shard_size": 7, "batch_size": 2}, {}],
    "topped up": [{"samples_per_prompt": 1}, {"samples_per_prompt": 3}, {}],
    "more than asked for": [{"samples_per_prompt": 9}, {}],
    "more prompts, another order": [{"names": "xaebycd"}, {}],
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_equal_solutions_are_equal_bytes_however_they_came_into_the_store(tmp_path: Path, way):
    expected = run(tmp_path / "whole", FakeEngine(said)).path.read_bytes()
    *_, sampled = [run(tmp_path / "store", FakeEngine(said), **change) for change in way]
    assert sampled.path.read_bytes() == expected
    texts = SOLUTIONS.read(sampled.path)["text"].to_list()
    assert texts == [said(f"How much is {p} ?", i) for p in NAMES for i in range(4)]


@pytest.mark.parametrize("names", ["ebdac", "cadbe"])
def test_memory_is_spent_on_a_span_of_rows_at_a_time(tmp_path: Path, monkeypatch, names: str):
    run(tmp_path, FakeEngine(said))
    monkeypatch.setattr(store, "ROW_GROUP", 4)
    expected = run(tmp_path, names=names).path.read_bytes()
    monkeypatch.setattr(store, "BUDGET", 1)
    monkeypatch.setattr(store, "TOGETHER", 1)
    sampled = run(tmp_path, names=names)
    assert sampled.path.read_bytes() == expected
    assert sampled.cost.samples == 0
    metadata = pq.ParquetFile(sampled.path).metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [4] * 5


# ---------------------------------------------------------------------------------------- requests


class Recording(FakeEngine):
    """Keeps what it was asked."""

    def __init__(self):
        super().__init__(said)
        self.requests: list[Request] = []

    def generate(self, batch: Sequence[Request], seed: int) -> list[list[Completion]]:
        self.requests += batch
        return super().generate(batch, seed)


def test_requests_name_the_samples_where_calls_cut_a_prompt_and_in_top_ups(tmp_path: Path):
    engine = Recording()
    run(tmp_path, engine, names="ab")
    assert [(r.prompt[12], r.first, r.n) for r in engine.requests] == [
        ("a", 0, 3),
        ("a", 3, 1),
        ("b", 0, 2),
        ("b", 2, 2),
    ]
    for shard in sorted((tmp_path / "samples").rglob("*.parquet"))[1:]:
        shard.unlink()
    kept = pl.read_parquet(next(iter(files(tmp_path / "samples"))))["sample_index"].to_list()
    engine.requests.clear()
    run(tmp_path, engine, names="ab", samples_per_prompt=6, batch_size=12, shard_size=12)
    drawn = [(r.prompt[12], i) for r in engine.requests for i in range(r.first, r.first + r.n)]
    assert len(drawn) == len(set(drawn)) == 12 - len(kept)
    assert drawn == sorted(drawn)


def test_a_top_up_from_eight_asks_in_full_shards_and_batches(tmp_path: Path):
    keys = {"batch_size": 6, "shard_size": 12}
    run(tmp_path, samples_per_prompt=8, **keys)
    before, engine = shards(tmp_path), Recording()
    run(tmp_path, engine, samples_per_prompt=16, **keys)
    assert {r.first for r in engine.requests} == {8, 10, 12, 14}
    assert len(shards(tmp_path)) - len(before) == 4  # 40 rows
    assert sum(r.n for r in engine.requests) == 40


# ---------------------------------------------------------------------------------------- writers


@pytest.mark.parametrize("of", [1, 2, 3, 5])
def test_parts_in_any_order_leave_the_store_of_one_run(tmp_path: Path, of: int):
    run(tmp_path / "whole")
    drawn = [
        sample_part(asked(tmp_path / "parts"), FakeEngine(), part, of).samples
        for part in reversed(range(of))
    ]
    assert shards(tmp_path / "parts") == shards(tmp_path / "whole")
    assert sum(drawn) == 20
    assert max(drawn) - min(drawn) <= SAMPLING.shard_size


class Meeting(FakeEngine):
    """Waits in its first call until all engines of the barrier are in theirs."""

    def __init__(self, barrier: threading.Barrier):
        super().__init__()
        self.barrier = barrier

    def generate(self, batch: Sequence[Request], seed: int) -> list[list[Completion]]:
        if not self.generated:
            self.barrier.wait(timeout=20)
        return super().generate(batch, seed)


@pytest.mark.parametrize("whole", [False, True], ids=["a part each", "all of it each"])
def test_writers_at_the_same_time_leave_the_store_of_one_run(tmp_path: Path, whole: bool):
    run(tmp_path / "one")
    barrier = threading.Barrier(3)

    def write(part: int) -> None:
        share = (0, 1) if whole else (part, 3)
        sample_part(asked(tmp_path / "many"), Meeting(barrier), *share)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(3)))
    assert shards(tmp_path / "many") == shards(tmp_path / "one")
    assert {p.suffix for p in files(tmp_path / "many")} == {".parquet"}


# ---------------------------------------------------------------------------------------- damage


def test_a_shard_with_a_broken_page_is_sampled_again(tmp_path: Path):
    expected = run(tmp_path).path.read_bytes()
    shard = min((tmp_path / "samples").rglob("*.parquet"))
    column = (
        pq.ParquetFile(shard).metadata.row_group(0).column(SOLUTIONS.schema.names().index("text"))
    )
    damaged = bytearray(shard.read_bytes())
    start = column.dictionary_page_offset or column.data_page_offset
    damaged[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
    shard.write_bytes(damaged)
    with pytest.raises(ToprError, match=f"{shard}; it is deleted; run again"):
        run(tmp_path)
    assert run(tmp_path).path.read_bytes() == expected


@pytest.mark.parametrize("wanted", [store.SHARD.key, SOLUTIONS.columns], ids=["found", "written"])
def test_a_shard_that_another_run_deletes_meanwhile_is_sampled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Iterable[str]
):
    expected = run(tmp_path).path.read_bytes()
    first = min((tmp_path / "samples").rglob("*.parquet"))
    read = pl.read_parquet

    def after_another(path: Path, columns: list[str]) -> pl.DataFrame:
        if path == first and columns == list(wanted):
            path.unlink(missing_ok=True)
        return read(path, columns=columns)

    monkeypatch.setattr(pl, "read_parquet", after_another)
    with suppress(ToprError):  # where it was found, and is gone when it is written
        run(tmp_path)
    monkeypatch.undo()
    assert run(tmp_path).path.read_bytes() == expected


@contextmanager
def largest_file(size: int) -> Generator[None]:
    """No file grows beyond `size` bytes: a write fails half-way, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_shard_that_does_not_fit_is_said_and_leaves_nothing_half_written(tmp_path: Path):
    expected = run(tmp_path / "whole").path.read_bytes()
    largest = max(map(len, shards(tmp_path / "whole").values()))
    assert min(map(len, shards(tmp_path / "whole").values())) < largest - 1
    with largest_file(largest - 1), pytest.raises(ToprError) as error:
        run(tmp_path / "store")
    assert "cannot be written" in str(error.value)
    assert "MB free" in str(error.value)
    assert "run again: what was finished is kept" in str(error.value)
    assert shards(tmp_path / "store").items() <= shards(tmp_path / "whole").items()
    assert {p.suffix for p in files(tmp_path / "store")} <= {".parquet"}
    assert run(tmp_path / "store").path.read_bytes() == expected


def test_a_table_that_does_not_fit_is_said_and_the_samples_are_kept(tmp_path: Path):
    expected = run(tmp_path / "whole").path.read_bytes()
    sample_part(asked(tmp_path / "store"), FakeEngine())
    with largest_file(len(expected) - 1), pytest.raises(ToprError, match="cannot be written"):
        run(tmp_path / "store")
    assert {p.parent.parent.name for p in files(tmp_path / "store")} == {"samples"}
    engine = FakeEngine()
    assert run(tmp_path / "store", engine).path.read_bytes() == expected
    assert engine.started == 0


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.mark.parametrize("left", [0, 1, 3])
def test_no_shard_is_sampled_for_which_there_is_no_room(tmp_path: Path, monkeypatch, left: int):
    usage = itertools.chain([Usage(0, 0, 1 << 30)] * 2 * left, itertools.repeat(Usage(0, 0, 9)))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: next(usage))
    engine = FakeEngine()
    with pytest.raises(ToprError, match=r"written: the disk is full \(0.0 MB free\)"):
        run(tmp_path, engine)
    assert engine.generated == left * SAMPLING.shard_size
    assert engine.closed == 1
    monkeypatch.undo()
    assert run(tmp_path).cost.samples == 20 - engine.generated


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the disk quota is used up"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EACCES, "there is no permission to write"),
    ],
)
def test_a_disk_that_cannot_be_written_to_is_named(tmp_path: Path, monkeypatch, number, said):
    def refuse(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    engine = FakeEngine()
    with pytest.raises(ToprError, match=f"{tmp_path}/samples/.* cannot be written: {said}"):
        run(tmp_path, engine)
    assert engine.generated == 0


def test_a_read_only_disk_is_found_before_anything_is_sampled(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    engine = FakeEngine()
    with pytest.raises(ToprError, match=r"samples/.* cannot be written: it is read-only"):
        run(tmp_path, engine)
    assert engine.generated == 0


def test_other_trouble_with_the_disk_is_shown_as_it_is(tmp_path: Path, monkeypatch):
    def fail(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(OSError, match="Input/output error"):
        run(tmp_path)


def test_any_table_says_what_polars_could_not_write(tmp_path: Path):
    frame = prompts([str(i) for i in range(5000)])
    with largest_file(1000), pytest.raises(ToprError, match=r"cannot be written: .* MB free\)"):
        PROMPTS.write(frame, tmp_path / "prompts.parquet")
    assert files(tmp_path) == set()
