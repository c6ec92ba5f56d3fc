"""Curation: ours against the best `datasets` pipeline that we could write, and pandas.

    python bench/mixes.py [--rows 10000000] [--largest 0] [--memory 3]

The job: of rewarded samples drop those without a reward, identical completions of a prompt, and
all but the first correct one of each prompt (Anna Karenina); solve the baseline c for an effective
positive share of 20 %; write key, reward and advantage to Parquet.

The generator (seed 0): 16 samples of each prompt, one after another. prompt_id is 16 random
hexadecimal digits, text a number of up to 19 digits (one in five rows one of four numbers, so that
a prompt repeats itself), answer a small number. A prompt's solve rate is drawn from
Beta(0.5, 1.5); 10 % of the wrong rows are invalid and 0.5 % of all unverifiable, of null reward.
Prompt and completion have two and four tokens.

`datasets` and pandas get one Parquet file with just the columns that they need (prompt_id,
sample_index, text, outcome, reward) in the order of the rows; ours reads the same from the tables
`solutions` and `rewards` and joins them. "whole mix" is what `topr run` does: it adds tokens and
log mu to each row, and sorts. Each runs in a process of its own; the peak is that process's.
`--largest` rows (100000000) are done by ours alone.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq

PER_PROMPT, STRETCH, TARGET = 16, 1 << 20, 0.2
NARROW = ["prompt_id", "sample_index", "text", "outcome", "reward"]


def stretch(draw: np.random.Generator, rows: int) -> pl.DataFrame:
    """Rows with the columns of both tables."""
    prompts = rows // PER_PROMPT
    ids = [f"{number:016x}" for number in draw.integers(0, 2**63, prompts)]
    rate_P = draw.beta(0.5, 1.5, prompts)
    right = draw.random(rows) < np.repeat(rate_P, PER_PROMPT)
    outcome = np.where(right, 0, np.where(draw.random(rows) < 0.1, 2, 1))
    outcome[draw.random(rows) < 0.005] = 4
    repeated = draw.random(rows) < 0.2
    text = np.where(repeated, draw.integers(0, 4, rows), draw.integers(0, 2**62, rows))
    names = pl.Series(["correct", "incorrect", "invalid", "truncated", "unverifiable"])
    tokens = draw.integers(0, 50_000, (rows, 4), dtype=np.int32)
    frame = pl.DataFrame(
        {
            "prompt_id": pl.Series(ids).gather(np.repeat(np.arange(prompts), PER_PROMPT)),
            "sample_index": np.tile(np.arange(PER_PROMPT, dtype=np.int32), prompts),
            "text": pl.Series(text).cast(pl.String),
            "answer": pl.Series(draw.integers(0, 100, rows)).cast(pl.String),
            "outcome": names[outcome],
            "reward": np.array([1.0, -1.0, -1.0, -1.0, np.nan])[outcome],
            "token_ids": pl.Series(tokens).arr.to_list(),
            "logprobs": pl.Series(-draw.random((rows, 4), dtype=np.float32)).arr.to_list(),
        }
    )
    return frame.with_columns(
        pl.col("reward").fill_nan(None),
        prompt_token_ids=pl.col("token_ids").list.head(2),
        logprob=pl.col("logprobs").list.sum().cast(pl.Float64),
        finish_reason=pl.lit("stop"),
        policy_version=pl.lit("v"),
        fingerprint=pl.lit("f"),
        verifier=pl.lit("bench/1"),
        detail=pl.lit(None, pl.String),
    )


def generate(folder: Path, rows: int) -> None:
    from topr_pipeline.tables import REWARDS, SOLUTIONS

    draw, writers = np.random.default_rng(0), {}
    columns = {"solutions": [*SOLUTIONS.schema], "rewards": [*REWARDS.schema], "rows": NARROW}
    for at in range(0, rows, STRETCH):
        frame = stretch(draw, min(STRETCH, rows - at))
        for name, wanted in columns.items():
            if name == "solutions":
                part = frame.select(pl.col(c).cast(SOLUTIONS.schema[c]) for c in wanted).to_arrow()
            else:
                part = frame.select(wanted).to_arrow()
            if name not in writers:
                path = folder / f"{name}.parquet"
                writers[name] = pq.ParquetWriter(path, part.schema, compression="zstd")
            writers[name].write_table(part, row_group_size=1 << 16)
    for writer in writers.values():
        writer.close()


def baseline(p: float) -> float:
    return (p - TARGET) / (p + TARGET * (1 - 2 * p))


def mix(memory: float):
    from topr_pipeline.experiment import Mix

    steps = [{"strategy": "dedupe"}, {"strategy": "anna_karenina"}]
    share = {"effective_positive_share": TARGET, "memory_gib": memory}
    return Mix.model_validate({"steps": steps, **share})


def ours(folder: Path, memory: float) -> int:
    from topr_pipeline.mixes.baseline import baseline_for_rewards
    from topr_pipeline.mixes.pool import counted
    from topr_pipeline.mixes.rows import rewarded
    from topr_pipeline.mixes.select import selected

    files, limit, kept = (
        [folder / f"{t}.parquet" for t in ("solutions", "rewards")],
        int(memory * 2**30),
        0,
    )
    tables = rewarded(1, *files, folder / "apart", limit)
    pool = selected(tables, mix(memory), 0, folder, limit).pool
    c = baseline_for_rewards(counted(pool, "reward"), TARGET)
    writer = None
    for keys, rows in zip(tables.wide([]), pool, strict=True):
        frame = keys[rows["at"]].with_columns(rows["reward"], advantage=rows["reward"] - c)
        part, kept = frame.to_arrow(), kept + frame.height
        writer = writer or pq.ParquetWriter(
            folder / "ours.parquet", part.schema, use_dictionary=["prompt_id"]
        )
        writer.write_table(part)
    writer.close()
    return kept


def whole(folder: Path, memory: float) -> int:
    from topr_pipeline.mixes import Source, curate

    source = Source(1, folder / "solutions.parquet", folder / "rewards.parquet")
    return curate([source], mix(memory), folder / "whole.parquet").rows


def with_pandas(folder: Path, memory: float) -> int:
    import pandas as pd

    rows = pd.read_parquet(folder / "rows.parquet", dtype_backend="pyarrow")
    for column in ("prompt_id", "outcome"):  # as numbers, which is several times faster
        rows[column] = rows[column].astype("category")
    rows["text"] = pd.util.hash_array(rows["text"].to_numpy(object), categorize=False)
    rows["number"] = rows["prompt_id"].cat.codes.to_numpy()
    rows = rows[rows["reward"].notna()]
    rows = rows[~rows.duplicated(["number", "text"])]
    right = (rows["outcome"] == "correct").to_numpy()
    keep = ~right
    keep[right] = ~rows.loc[right, "number"].duplicated().to_numpy()
    rows = rows[keep]
    c = baseline((rows["reward"] > 0).mean())
    rows = rows.assign(advantage=rows["reward"] - c)
    rows[["prompt_id", "sample_index", "reward", "advantage"]].to_parquet(folder / "pandas.parquet")
    return len(rows)


def with_datasets(folder: Path, memory: float) -> int:
    import pyarrow as pa
    import pyarrow.compute as pc
    from datasets import Dataset, disable_progress_bars

    disable_progress_bars()
    cache = {"cache_dir": str(folder / "cache")}
    rows = Dataset.from_parquet(str(folder / "rows.parquet"), **cache).with_format("arrow")

    def keep(table: pa.Table) -> pa.Table:
        """Of whole prompts: 16 divides the size of a batch."""
        batch = table.to_pandas()
        batch = batch[batch["reward"].notna()]
        batch = batch[~batch.duplicated(["prompt_id", "text"])]
        right = batch["outcome"] == "correct"
        again = batch[right].duplicated("prompt_id")
        batch = batch.drop(index=again.index[again])
        narrow = batch[["prompt_id", "sample_index", "reward"]]
        return pa.Table.from_pandas(narrow, preserve_index=False)

    size = {"batched": True, "batch_size": 160_000}
    rows = rows.map(keep, remove_columns=["text", "outcome"], **size)
    positive = pc.mean(pc.cast(pc.greater(rows.data.column("reward"), 0), pa.float64()))
    c = baseline(positive.as_py())
    rows = rows.map(
        lambda t: t.append_column("advantage", pc.subtract(t.column("reward"), c)), **size
    )
    rows.to_parquet(folder / "datasets.parquet", batch_size=160_000)
    return len(rows)


DONE: dict[str, Callable[[Path, float], int]] = {
    "ours": ours,
    "pandas": with_pandas,
    "datasets": with_datasets,
    "whole mix": whole,
}


def measured(name: str, folder: Path, memory: float) -> dict[str, float]:
    """Seconds, rows kept and peak memory of one pipeline in a process of its own."""
    call = [sys.executable, __file__, "--one", name, "--folder", str(folder)]
    said = subprocess.run([*call, "--memory", str(memory)], check=True, capture_output=True)
    return json.loads(said.stdout.splitlines()[-1])


def one(name: str, folder: Path, memory: float) -> None:
    started = time.perf_counter()
    kept = DONE[name](folder, memory)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": seconds, "kept": kept, "peak_gib": peak}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--largest", type=int, default=0)
    parser.add_argument("--memory", type=float, default=3.0, help="mix.memory_gib")
    parser.add_argument("--one", choices=DONE, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        one(asked.one, asked.folder, asked.memory)
        return
    print(f"{'rows':>12} {'':12}{'seconds':>9}{'rows/s':>13}{'peak GiB':>10}{'kept':>13}")
    for wanted in filter(None, (asked.rows, asked.largest)):
        rows = wanted - wanted % PER_PROMPT
        names = ["ours", "whole mix"] if wanted == asked.largest else list(DONE)
        with tempfile.TemporaryDirectory() as folder:
            generate(Path(folder), rows)
            for name in names:
                found = measured(name, Path(folder), asked.memory)
                print(
                    f"{rows:12,} {name:12}{found['seconds']:9.2f}{rows / found['seconds']:13,.0f}"
                    f"{found['peak_gib']:10.2f}{found['kept']:13,.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
