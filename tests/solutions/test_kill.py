"""SIGKILL at random moments: the store goes on where it was, and ends with the same bytes."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import topr_pipeline

SCRIPT = """
import sys, time
from pathlib import Path
import polars as pl
from topr_pipeline.experiment import Sampling
from topr_pipeline.solutions import Asked, sample
from topr_pipeline.tables import PROMPTS
from topr_pipeline.testing import FakeEngine

class Slow(FakeEngine):
    def generate(self, batch, seed):
        print("call", flush=True)
        time.sleep(float(sys.argv[2]))
        return super().generate(batch, seed)

names = [f"p{i}" for i in range(60)]
said = dict(gold="1", source="test", split="train", meta="{}")
prompts = PROMPTS.conform(
    pl.DataFrame(dict(prompt_id=names, prompt=[f"How much is {n} ?" for n in names]))
    .with_columns(pl.lit(v).alias(k) for k, v in said.items())
)
sampling = Sampling(engine="fake", samples_per_prompt=4, shard_size=5, batch_size=3)
folder = Path(sys.argv[1])
asked = Asked(prompts, sampling, Path("policy"), "v1", folder / "samples", 7)
done = sample(asked, Slow(), folder / "solutions.parquet")
print(done.cost.samples)
"""
ROWS, SLEEP, KILLS = 240, 0.02, 10


def start(folder: Path, sleep: float) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": str(Path(topr_pipeline.__file__).parents[1])}
    command = [sys.executable, "-c", SCRIPT, str(folder), str(sleep)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def finish(folder: Path) -> tuple[bytes, int]:
    """The table, and how many samples were still to be drawn."""
    said, _ = start(folder, 0).communicate(timeout=60)
    return (folder / "solutions.parquet").read_bytes(), int(said.split()[-1])


def kept(folder: Path) -> set[str]:
    return {p.name for p in folder.glob("samples/*/*.parquet")}


@pytest.mark.slow
def test_ten_kills_at_random_moments_end_with_the_table_of_an_uninterrupted_run(tmp_path: Path):
    whole, drawn = finish(tmp_path / "whole")
    assert drawn == ROWS
    moments = random.Random(0)
    folder, before = tmp_path / "killed", set[str]()
    for _ in range(KILLS):
        process = start(folder, SLEEP)
        assert process.stdout is not None
        for _ in range(moments.randint(1, 8)):
            assert process.stdout.readline() == "call\n"
        time.sleep(moments.uniform(0, 3 * SLEEP))
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
        assert before <= kept(folder)
        before = kept(folder)
    table, drawn = finish(folder)
    assert table == whole
    assert 0 < drawn < ROWS
    assert kept(folder) == kept(tmp_path / "whole")
