"""Stand-ins for what is slow or large, to test pipelines and one's own assets without a model."""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import polars as pl
from safetensors.numpy import load_file, save_file

from topr_pipeline.checkpoints.agreement import Agreement, Scorer
from topr_pipeline.checkpoints.jobs import BasePolicyJob, TrainJob
from topr_pipeline.checkpoints.trained import Trained
from topr_pipeline.experiment import Sampling
from topr_pipeline.progress import Progress, quiet
from topr_pipeline.solutions.engine import Completion, Request
from topr_pipeline.solutions.offline import Encoder
from topr_pipeline.tables import MIX, TIMED, TRAINING_LOG

# ------------------------------------------------------------------------------------- engine


class FakeEngine:
    """A sampling engine without a model: the reply is a function's, the rest is made up.

    A word is a token, its id a stable hash below 1000. A reply that fits into `max_tokens` ends
    with `EOS`; one with a stop string ends before the first, then its last token. Log-probs lie in
    (-2, 0) and depend on the text alone. Nothing depends on the process, so equal calls give
    equal completions everywhere.

    Args:
        reply: `reply(prompt, i)` is the text of a prompt's sample i (its sample_index, from 0).
            Default: "The answer is K", K from 0 to 9 out of the prompt, the sample and both seeds.
        seed: makes another engine of the default reply.
        fail_after: raise RuntimeError in the call that would complete more than this many samples
            since the engine was made, as an engine does whose machine goes away.

    `started`, `closed` and `generated` count starts, closes and completions.

    >>> engine = FakeEngine(reply=lambda prompt, i: f"The answer is {i}")
    >>> engine.start(Path("policy"), Sampling(engine="fake"))
    >>> [c.text for c in engine.generate([Request("2 - 1 = ?", n=2)], seed=0)[0]]
    ['The answer is 0', 'The answer is 1']
    """

    EOS = 1000

    def __init__(
        self,
        reply: Callable[[str, int], str] | None = None,
        seed: int = 0,
        fail_after: int | None = None,
    ):
        self.reply, self.seed, self.fail_after = reply, seed, fail_after
        self.started = self.closed = self.generated = 0

    def start(self, policy: Path, sampling: Sampling) -> None:
        """Count the start; `policy` is not looked at and need not exist."""
        self.started += 1
        self.max_tokens, self.stop = sampling.max_tokens, sampling.stop

    def generate(self, batch: Sequence[Request], seed: int) -> list[list[Completion]]:
        """The replies to `batch`, cut to `max_tokens` words."""
        total = self.generated + sum(r.n for r in batch)
        if self.fail_after is not None and total > self.fail_after:
            raise RuntimeError(f"fake engine stops after {self.fail_after} completions, as told")
        completions = [
            [self._complete(r.prompt, r.first + i, seed) for i in range(r.n)] for r in batch
        ]
        self.generated = total
        return completions

    def close(self) -> None:
        """Count the close."""
        self.closed += 1

    def _complete(self, prompt: str, i: int, seed: int) -> Completion:
        if self.reply is None:
            text = f"The answer is {_stable(f'{self.seed} {seed} {i} {prompt}') % 10}"
        else:
            text = self.reply(prompt, i)
        stops = [stop for stop in self.stop if stop in text]
        end = min(stops, key=text.find, default=None)
        text = text.partition(end)[0] if end else text
        words = text.split()
        fits = len(words) < self.max_tokens
        if not fits:
            text = " ".join(words[: self.max_tokens])
        last = _token(end) if end else self.EOS
        tokens = [_token(w) for w in words[: self.max_tokens]] + [last] * fits
        return Completion(
            text=text,
            prompt_token_ids=[_token(w) for w in prompt.split()],
            token_ids=tokens,
            logprobs=_logprobs(tokens, text),
            finish_reason="stop" if fits else "length",
        )


def _logprobs(tokens: Sequence[int], text: str) -> list[float]:
    return [-(1 + _stable(f"{i} {t} {text}") % 1999) / 1000 for i, t in enumerate(tokens)]


class FakeTokenizer:
    """A word is a token, as in FakeEngine; tokens cannot be read back, and say nothing."""

    all_special_tokens: Sequence[str] = ()
    eos_token_id = FakeEngine.EOS
    unk_token_id = None

    def __call__(self, text: str | list[str], add_special_tokens: bool) -> dict[str, list]:
        """`input_ids` of a text, or of each of several."""
        if isinstance(text, str):
            return {"input_ids": [_token(word) for word in text.split()]}
        return {"input_ids": [[_token(word) for word in each.split()] for each in text]}

    def __len__(self) -> int:
        return FakeEngine.EOS + 1

    def decode(self, tokens: Sequence[int], **_: object) -> str:
        """Nothing."""
        return ""


def _token(word: str) -> int:
    return _stable(word) % 1000


def _stable(text: str) -> int:
    """A hash that is the same in every process, unlike `hash`."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


# ------------------------------------------------------------------------------------- models


class FakeModels:
    """The Dagster resource `models` without a model, to run a whole experiment in a second.

    A policy is a folder with `config.json` and one number for a weight. Training replaces it by one
    that depends on the policy it started from and on the mix, and returns a log of one step.
    `engine` gives a FakeEngine with `reply`.

    Args:
        reply: the text of the i-th sample of a prompt; see FakeEngine.
        fail_after: passed to FakeEngine: an engine that goes away.

    `calls` lists what was asked for, in order: "base_policy", "engine", "agreement", "scorer",
    "train".
    `engines` are the engines that were handed out.

    >>> import dagster as dg
    >>> from topr_pipeline.components import experiment_assets
    >>> from topr_pipeline.experiment import Experiment
    >>> def result_of(experiment: Experiment, folder: Path) -> dg.ExecuteInProcessResult:
    ...     models = FakeModels(reply=lambda prompt, i: f"The answer is {i}")
    ...     resources = {"models": models, "data": str(folder)}
    ...     return dg.materialize(experiment_assets("toy", experiment, folder), resources=resources)
    """

    def __init__(
        self, reply: Callable[[str, int], str] | None = None, fail_after: int | None = None
    ):
        self.reply, self.fail_after = reply, fail_after
        self.calls: list[str] = []
        self.engines: list[FakeEngine] = []

    def base_policy(self, job: BasePolicyJob, progress: Progress = quiet) -> None:
        """An untrained policy; no training log."""
        self.calls.append("base_policy")
        _write_policy(job.folder, f"{job.policy} {job.seed}")

    def engine(self, sampling: Sampling) -> FakeEngine:
        """A FakeEngine, whatever `sampling.engine` says."""
        self.calls.append("engine")
        self.engines.append(FakeEngine(self.reply, fail_after=self.fail_after))
        return self.engines[-1]

    def agreement(self, solutions: Path, policy: Path) -> Agreement:
        """Full agreement, without a look."""
        self.calls.append("agreement")
        return Agreement(1, 0.0, 0.0, 1.0, 1.0)

    def encoder(self, policy: Path, sampling: Sampling) -> Encoder:
        """A FakeTokenizer, without a context."""
        return Encoder(FakeTokenizer(), frozenset({FakeEngine.EOS}), stop=sampling.stop)

    def scorer(self, policy: Path) -> Scorer:
        """Log-probs that depend on the completion alone."""
        self.calls.append("scorer")
        return lambda rows: [_logprobs(tokens, "") for tokens in rows["token_ids"]]

    def train(self, job: TrainJob, progress: Progress = quiet) -> Trained:
        """The policy in `job.start`, trained once more."""
        self.calls.append("train")
        mix = MIX.read(job.mix)
        before = load_file(job.start / "model.safetensors")["weight"][0]
        rows = mix.select("prompt_id", "sample_index", "advantage").rows()
        _write_policy(job.folder, f"{before} {rows}")
        positives = mix.filter(pl.col("advantage") >= 0).height
        step = dict.fromkeys(TRAINING_LOG.schema, 0.0)
        step |= {"step": 1, "positives": positives, "negatives": mix.height - positives}
        log = TRAINING_LOG.conform(pl.DataFrame([step]))
        TRAINING_LOG.write(log, job.folder / TIMED)
        progress(1, 1, loss=0.0)
        return Trained(log, 1.0)

    def threads(self, count: int | None) -> AbstractContextManager[None]:
        """Nothing to limit."""
        return nullcontext()


def _write_policy(folder: Path, remembered: str) -> None:
    folder.mkdir(parents=True)
    config = {"architectures": ["Fake"], "vocab_size": FakeEngine.EOS + 1}
    (folder / "config.json").write_text(json.dumps(config))
    weight = np.array([_stable(remembered) % 2**31], np.float64)
    save_file({"weight": weight}, folder / "model.safetensors")
