"""What the sample store saves: 8 -> 16 samples against 16 afresh, killed half-way against whole.

The first ratio may be 0.55 at most, the second 1.1. Once with an engine that only sleeps, once with
transformers on the tiny architecture (random weights: speed does not depend on them). Times are
those of `sample`, engine start and writing of the table included, best of `--repeats`.
"""

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

from topr_pipeline.checkpoints.base import prepare_base_policy
from topr_pipeline.experiment import Sampling, TinyPolicy
from topr_pipeline.progress import quiet
from topr_pipeline.prompts import prompt_id
from topr_pipeline.solutions import Asked, Completion, Engine, Request, make_engine, sample
from topr_pipeline.tables import PROMPTS
from topr_pipeline.testing import FakeEngine


class Sleeping(FakeEngine):
    """A millisecond a sample."""

    def generate(self, batch: Sequence[Request], seed: int) -> list[list[Completion]]:
        time.sleep(0.001 * sum(r.n for r in batch))
        return super().generate(batch, seed)


class Killed(Exception):
    """Stands for a kill: nothing of the shard at work is kept."""


def dies_at(share: float) -> Callable[..., None]:
    def progress(done: int, total: int, **figures: float) -> None:
        if done >= share * total:
            raise Killed

    return progress


def seconds(asked: Asked, engine: Engine, progress: Callable[..., None] = quiet) -> float:
    started = time.perf_counter()
    with contextlib.suppress(Killed):
        sample(asked, engine, asked.store / "solutions.parquet", progress)
    return time.perf_counter() - started


def ratios(policy: Path, engine: Callable[[], Engine], sampling: Sampling) -> tuple[float, float]:
    """Of topping up to sampling afresh, and of killed and resumed to whole."""
    names = [f"How much is {n} plus {n % 7} ?" for n in range(128)]
    said = {"gold": "1", "source": "bench", "split": "train", "meta": "{}"}
    prompts = PROMPTS.conform(
        pl.DataFrame({"prompt_id": [prompt_id(p) for p in names], "prompt": names}).with_columns(
            pl.lit(v).alias(k) for k, v in said.items()
        )
    )

    def asked(store: str, samples: int) -> Asked:
        wanted = sampling.model_copy(update={"samples_per_prompt": samples})
        return Asked(prompts, wanted, policy, "v1", Path(store), 0)

    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        whole = seconds(asked(a, 16), engine())
        seconds(asked(b, 8), engine())
        more = seconds(asked(b, 16), engine())
    with tempfile.TemporaryDirectory() as c:
        killed = seconds(asked(c, 16), engine(), dies_at(0.5))
        resumed = seconds(asked(c, 16), engine())
    return more / whole, (killed + resumed) / whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    sampling = Sampling(engine="fake", max_tokens=48, shard_size=64, batch_size=64)
    cases: dict[str, Callable[[], Engine]] = {
        "sleeping": Sleeping,
        "transformers": lambda: make_engine("transformers"),
    }
    print(f"{'engine':14}{'8 -> 16 / 16':>14}{'killed + resumed / whole':>26}")
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy"
        prepare_base_policy(TinyPolicy(source="tiny", pretrain_steps=0), policy, 0, quiet)
        for name, engine in cases.items():
            seconds_of = [ratios(policy, engine, sampling) for _ in range(repeats + 1)][1:]
            more, again = (min(column) for column in zip(*seconds_of, strict=True))
            print(f"{name:14}{more:14.2f}{again:26.2f}", flush=True)


if __name__ == "__main__":
    main()
