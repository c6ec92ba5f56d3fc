"""Memory of an iteration's tables at scale: 5,000 prompts x 32 samples of 100 tokens.

Every stage is made as a run makes it, with an engine that costs nothing. `--prompts 200000` is the
size that has to stay below 4 GB. One line per stage: seconds, the peak of this process in MB.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from topr_pipeline.components.graph import unroll
from topr_pipeline.components.step import Place, make
from topr_pipeline.experiment import Experiment, Sampling
from topr_pipeline.solutions import Completion, Request
from topr_pipeline.testing import FakeEngine, FakeModels

STAGES = ("prompts", "iter_00/checkpoint", "iter_01/solutions", "iter_01/rewards", "iter_01/mix")


class Ready(FakeEngine):
    """Gives out completions that were made once."""

    def __init__(self, tokens: int):
        super().__init__()
        draw = random.Random(0)
        self.ready = [_completion(draw, tokens) for _ in range(997)]

    def generate(self, batch: Sequence[Request], seed: int) -> list[list[Completion]]:
        wanted = [range(r.first, r.first + r.n) for r in batch]
        return [[self.ready[(seed + p * 31 + i) % 997] for i in w] for p, w in enumerate(wanted)]


def _completion(draw: random.Random, tokens: int) -> Completion:
    ids = [draw.randrange(50_000) for _ in range(tokens)]
    text = " ".join(map(str, ids)) + f" The answer is {draw.randrange(10)}"
    logprobs = [-draw.random() for _ in ids]
    return Completion(text, ids[: tokens // 2], ids, logprobs, "stop")


class ReadyModels(FakeModels):
    def __init__(self, tokens: int):
        super().__init__()
        self.tokens = tokens

    def engine(self, sampling: Sampling) -> FakeEngine:
        return Ready(self.tokens)


def experiment(samples: int) -> Experiment:
    return Experiment.model_validate(
        {
            "iterations": 1,
            "policy": {"source": "tiny"},
            "prompts": {"source": "files", "path": "train.jsonl"},
            "eval_prompts": {"source": "files", "path": "eval.jsonl"},
            "sampling": {"engine": "fake", "samples_per_prompt": samples},
            "mix": {"steps": [{"strategy": "anna_karenina", "incorrect": 1}]},
        }
    )


def write_prompts(path: Path, numbers: Sequence[int]) -> None:
    rows = ({"prompt": f"How much is {n} modulo ten?", "gold": n % 10} for n in numbers)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def peak_mb() -> float:
    """Of this process, since the last call."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return peak / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=5_000)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--through", choices=STAGES, default=STAGES[-1], help="the last stage")
    asked = parser.parse_args()
    e, models = experiment(asked.samples), ReadyModels(asked.tokens)
    print(f"{asked.prompts:,} prompts x {asked.samples} samples of {asked.tokens} tokens")
    print(f"{'stage':20}{'seconds':>9}{'peak MB':>9}{'file MB':>9}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_prompts(root / "train.jsonl", range(asked.prompts))
        write_prompts(root / "eval.jsonl", range(-4, 0))
        nodes = unroll("big", e, root)
        for stage in STAGES[: STAGES.index(asked.through) + 1]:
            node, started = nodes[f"big/{stage}"], time.perf_counter()
            peak_mb()
            make(node, nodes, e, Place(root, root), models, print)
            path, seconds = node.path(root), time.perf_counter() - started
            size = path.stat().st_size / 1e6 if path.is_file() else 0
            print(f"{stage:20}{seconds:9.1f}{peak_mb():9.0f}{size:9.1f}", flush=True)


if __name__ == "__main__":
    main()
