"""One optimiser step: ours against plain padded batches, and against TRL.

    python bench/train_step.py [--prompt 900 100] [--dtype float32 bfloat16] [--what ours plain trl]

A random Llama of SmolLM2-135M's size (`--layers`, `--hidden` for others) takes one step of AdamW on
16 samples of one prompt: 900 or 100 prompt tokens, 150 new ones each.

- ours: `topr_pipeline.checkpoints.train` as it is, objective `topr`, all checks on.
- plain: transformers' Trainer with the same loss from full logits, micro-batches of 4 padded rows
  that have a copy of the prompt each.
- trl: `GRPOTrainer` (1.16) replaying the same samples through `rollout_func`, micro-batches of 4,
  with the stored log-probs and the loss `vespo`, the nearest that it has. Left out where TRL is not
  installed: `python -m venv trl; trl/bin/pip install trl==1.16 -e .`, then run this file with that
  interpreter.

Seconds are from the step's begin to its end, by a Trainer callback. Each row is a process of its
own. "peak GB" is its largest resident set, "step's GB" that less what it was before the step.

    python bench/train_step.py --what head

Log-probs and gradients of 1,024 and 8,192 tokens over a vocabulary of 128,000, hidden size 576:
memory over what weights and gradients take, ours and with full logits (these for few tokens only).
"""

import argparse
import importlib.util
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback

VOCABULARY = 49152
EOS = 2


class Clock(TrainerCallback):
    """Seconds of the only step, and the peak of memory since it began."""

    seconds = held = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.held, self.started = peak(), time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds = time.perf_counter() - self.started


def peak() -> float:
    """This process's largest resident set so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def llama(said: argparse.Namespace, vocabulary: int = VOCABULARY) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=said.hidden,
            intermediate_size=said.hidden * 8 // 3,
            num_hidden_layers=said.layers,
            num_attention_heads=said.hidden // 64,
            num_key_value_heads=said.hidden // 192,
            tie_word_embeddings=True,
            max_position_embeddings=8192,
            bos_token_id=1,
            eos_token_id=EOS,
            pad_token_id=EOS,
        )
    )


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w3"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyrefly: ignore
    return PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="w1", eos_token="w2", pad_token="w2", unk_token="w3"
    )


def drawn(said: argparse.Namespace) -> tuple[list[int], list[list[int]]]:
    """A prompt and its completions, each with EOS at its end."""
    draw = np.random.default_rng(0)
    prompt = draw.integers(4, VOCABULARY, said.prompt[0]).tolist()
    return prompt, [
        [*draw.integers(4, VOCABULARY, said.completion - 1).tolist(), EOS]
        for _ in range(said.samples)
    ]


def logprobs(said: argparse.Namespace) -> list[float]:
    """Log mu: those of a random model, about -log of the vocabulary."""
    return [-float(np.log(VOCABULARY))] * said.completion


def sign(sample: int) -> float:
    return 1.0 if sample % 2 else -1.0


# ------------------------------------------------------------------------------------- the steps


def ours(said: argparse.Namespace, clock: Clock) -> None:
    import polars as pl
    import transformers.trainer

    from topr_pipeline.checkpoints import train
    from topr_pipeline.checkpoints.folders import save
    from topr_pipeline.experiment import Training

    transformers.trainer.DEFAULT_CALLBACKS.append(clock)  # type: ignore[arg-type]
    prompt, completions = drawn(said)
    rewards = [sign(i) for i in range(said.samples)]
    mix = pl.DataFrame(
        {
            "prompt_id": "p",
            "sample_index": range(said.samples),
            "iteration": 1,
            "reward": rewards,
            "advantage": rewards,
            "prompt_token_ids": [prompt] * said.samples,
            "token_ids": completions,
            "logprobs": [logprobs(said)] * said.samples,
            "logprob": sum(logprobs(said)),
        }
    )
    training = Training.model_validate(
        {
            "batch_size": said.samples,
            "dtype": said.dtype[0],
            "tokens_per_forward": said.budget,
            "ratio_limits": [1e-30, 1e30],
            "learning_rate": 1e-6,
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        save(llama(said), tokenizer(), Path(folder) / "start")
        train(mix, Path(folder) / "start", Path(folder) / "end", training, 0)


def arguments(said: argparse.Namespace, folder: str) -> dict[str, Any]:
    """What `plain` and `trl` tell the Trainer."""
    return {
        "output_dir": folder,
        "use_cpu": not torch.cuda.is_available(),
        "bf16": said.dtype[0] == "bfloat16",
        "optim": "adamw_torch_fused",
        "learning_rate": 1e-6,
        "max_steps": 1,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": said.samples // 4,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
    }


def plain(said: argparse.Namespace, clock: Clock) -> None:
    from transformers import Trainer, TrainingArguments

    prompt, completions = drawn(said)
    mu = torch.tensor(logprobs(said))

    class Plain(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
            logits = model(
                input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]
            ).logits
            logprobs_BT = torch.log_softmax(logits[:, :-1].float(), -1)
            logprobs_BT = logprobs_BT.gather(2, inputs["input_ids"][:, 1:, None])[..., 0]
            logprobs_BT = logprobs_BT[:, -said.completion :]
            ratio_B = (logprobs_BT.detach() - mu.to(logprobs_BT.device)).sum(1).exp()
            advantage_B = inputs["advantage"]
            weight_B = torch.where(advantage_B >= 0, 1.0, ratio_B.clamp(0, 1))
            loss = -(weight_B * advantage_B * logprobs_BT.sum(1) / said.completion).mean()
            return loss / self.args.gradient_accumulation_steps

    rows = [
        {
            "input_ids": torch.tensor(prompt + completion),
            "attention_mask": torch.ones(len(prompt) + len(completion), dtype=torch.long),
            "advantage": torch.tensor(sign(i)),
        }
        for i, completion in enumerate(completions)
    ]
    with tempfile.TemporaryDirectory() as folder:
        Plain(
            model=llama(said),
            args=TrainingArguments(**arguments(said, folder)),
            train_dataset=rows,  # pyrefly: ignore
            data_collator=lambda items: {k: torch.stack([i[k] for i in items]) for k in items[0]},
            callbacks=[clock],
        ).train()


def trl(said: argparse.Namespace, clock: Clock) -> None:
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer  # pyrefly: ignore

    prompt, completions = drawn(said)

    class Stored(GRPOTrainer):
        """With the stored log-probs as those of the old policy."""

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            output["old_per_token_logps"] = torch.tensor([logprobs(said)] * said.samples)
            return output

    def replay(prompts: list[str], _: Any) -> dict[str, Any]:
        assert len(prompts) == said.samples
        return {
            "prompt_ids": [prompt] * said.samples,
            "completion_ids": completions,
            "logprobs": [logprobs(said)] * said.samples,
        }

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            **arguments(said, folder),
            num_generations=said.samples,
            max_completion_length=said.completion,
            loss_type="vespo",
            beta=0.0,
        )
        Stored(
            model=llama(said),
            reward_funcs=lambda completions, **_: [sign(i) for i in range(len(completions))],
            args=config,
            train_dataset=Dataset.from_dict({"prompt": ["w4"] * 4}),
            processing_class=tokenizer(),
            rollout_func=replay,
            callbacks=[clock],
        ).train()


# ------------------------------------------------------------------------------------- the head


def head(said: argparse.Namespace) -> dict[str, Any]:
    """Memory of log-probs and gradients of one completion, ours or from full logits."""
    from topr_pipeline.checkpoints import completion_logprobs

    said.layers = 1
    model = llama(said, said.vocabulary).eval()
    for parameter in model.parameters():  # gradients are there whatever computes them
        parameter.grad = torch.zeros_like(parameter)
    tokens = [5] * said.tokens[0]
    held, started = peak(), time.perf_counter()
    if said.one == "head":
        completion_logprobs(model, [[1]], [tokens]).logprob_B.sum().backward()
    else:
        logits = model(torch.tensor([[1, *tokens]])).logits[0, :-1].float()
        (-torch.nn.functional.cross_entropy(logits, torch.tensor(tokens))).backward()
    return {"seconds": time.perf_counter() - started, "memory": peak() - held}


def one(said: argparse.Namespace) -> dict[str, Any]:
    if said.one in ("head", "full head"):
        return head(said)
    clock = Clock()
    {"ours": ours, "plain": plain, "trl": trl}[said.one](said, clock)
    return {"seconds": clock.seconds, "memory": peak() - clock.held, "peak": peak()}


# ------------------------------------------------------------------------------------- the tables


def measured(said: argparse.Namespace, what: str, **settings: Any) -> dict[str, Any] | None:
    """The figures of a process of its own; None with a line on stderr where it failed."""
    given = vars(said) | settings
    words = [f"--one={what}"]
    for key in ("prompt", "dtype", "tokens"):
        words += [f"--{key}", str(given[key] if key in settings else given[key][0])]
    for key in ("layers", "hidden", "samples", "completion", "budget", "vocabulary"):
        words += [f"--{key}", str(given[key])]
    run = subprocess.run(
        [sys.executable, __file__, *words], capture_output=True, text=True, check=False
    )
    if run.returncode:
        print(f"{what} failed ({run.returncode}): {run.stderr[-1500:]}", file=sys.stderr)
        return None
    return json.loads(run.stdout.strip().splitlines()[-1])


def steps(said: argparse.Namespace, console: Console) -> None:
    kinds = [what for what in said.what if what != "head"]
    if "trl" in kinds and importlib.util.find_spec("trl") is None:
        console.print("TRL is not installed, so it is left out: see this file's first lines")
        kinds.remove("trl")
    new = said.samples * said.completion
    table = Table(title=f"One step of {said.samples} samples of {said.completion} new tokens")
    for column in ("prompt", "dtype", "what", "seconds", "new tokens/s", "peak GB", "step's GB"):
        table.add_column(column, justify="left" if column in ("what", "dtype") else "right")
    for prompt in said.prompt:
        for dtype in said.dtype:
            for what in kinds:
                found = measured(said, what, prompt=prompt, dtype=dtype)
                if found is not None:
                    figures = found["seconds"], new / found["seconds"]
                    memory = found["peak"], found["memory"]
                    shown = [f"{x:.1f}" for x in (*figures, *memory)]
                    table.add_row(str(prompt), dtype, what, *shown)
    if table.rows:
        console.print(table)


def heads(said: argparse.Namespace, console: Console) -> None:
    table = Table(title=f"Log-probs and gradients over a vocabulary of {said.vocabulary:,}")
    for column in ("tokens", "logits would be GB", "what", "seconds", "GB over weights"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for tokens in said.tokens:
        for what in ("head", "full head"):
            logits = tokens * said.vocabulary * 4 / 1e9
            if what == "full head" and logits > said.full_up_to:
                continue
            found = measured(said, what, tokens=tokens)
            if found is not None:
                name = "ours" if what == "head" else "full logits"
                shown = f"{found['seconds']:.1f}", f"{found['memory']:.2f}"
                table.add_row(f"{tokens:,}", f"{logits:.2f}", name, *shown)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ["ours", "plain", "trl", "head"]
    parser.add_argument("--what", nargs="+", choices=names, default=names)
    parser.add_argument("--prompt", nargs="+", type=int, default=[900, 100])
    dtypes = ["float32", "bfloat16"]
    parser.add_argument("--dtype", nargs="+", choices=dtypes, default=dtypes)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--completion", type=int, default=150)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--hidden", type=int, default=576, help="a multiple of 192")
    parser.add_argument("--budget", type=int, default=16384, help="our tokens_per_forward")
    parser.add_argument("--tokens", nargs="+", type=int, default=[1024, 8192])
    parser.add_argument("--vocabulary", type=int, default=128_000)
    parser.add_argument("--full-up-to", type=float, default=1.0, help="GB of logits held at once")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    said = parser.parse_args()
    if said.one:
        print(json.dumps(one(said)))
        return
    console = Console(width=100)
    processor = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    console.print(
        f"torch {torch.__version__}, {processor}, {torch.get_num_threads()} threads, "
        f"{torch.backends.cpu.get_cpu_capability()}"
    )
    if set(said.what) != {"head"}:
        steps(said, console)
    if "head" in said.what:
        heads(said, console)


if __name__ == "__main__":
    main()
