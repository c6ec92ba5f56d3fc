"""The base policy, `iter_00/checkpoint`: a model given, or a tiny one pre-trained here."""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from topr_pipeline.checkpoints.folders import ORIGIN, describe, from_pretrained, save
from topr_pipeline.checkpoints.origin import origin_of
from topr_pipeline.checkpoints.sources import MAX_POSITIONS, located
from topr_pipeline.experiment import (
    FolderPolicy,
    GgufPolicy,
    HubPolicy,
    Policy,
    TinyPolicy,
    Training,
)
from topr_pipeline.progress import Progress, quiet
from topr_pipeline.prompts.word_problems import demonstrations, vocabulary
from topr_pipeline.solutions.tokenize import TRUSTED

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

_PAD, _BOS, _EOS, _UNK = SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")
_STEPS = (1, 3)


def prepare_base_policy(
    policy: Policy,
    folder: Path,
    seed: int,
    progress: Progress = quiet,
    *,
    state: Path | None = None,
) -> pl.DataFrame | None:
    """Write the base policy to `folder`; the `training_log` of its pre-training, if there was any.

    A policy from the Hub, a folder or a GGUF file is loaded and saved anew, in safetensors, so that
    what later stages read is local, complete, and known to load; `origin.json` beside it says where
    it comes from. A pre-training that was cut off goes on from `state`, see `train`. Raises
    ToprError for what is not a causal language model with safetensors (or GGUF) weights and a
    tokenizer.
    """
    if not isinstance(policy, TinyPolicy):
        _save_anew(policy, folder)
        return None
    tokenizer = tiny_tokenizer()
    model = tiny_model(policy, tokenizer, _derived(seed, "weights"))
    if policy.pretrain_steps == 0:
        save(model, tokenizer, folder)
        return None
    from topr_pipeline.checkpoints.trainer import train

    count = policy.pretrain_steps * policy.batch_size
    pairs = demonstrations(count, _STEPS, _derived(seed, "demonstrations"))
    with tempfile.TemporaryDirectory() as scratch:
        save(model, tokenizer, Path(scratch))
        return train(
            demonstration_mix(pairs, tokenizer),
            Path(scratch),
            folder,
            _pretraining(policy),
            _derived(seed, "order"),
            progress,
            state=state,
            name="pre-training",
        ).log


def _save_anew(policy: FolderPolicy | HubPolicy | GgufPolicy, folder: Path) -> None:
    if isinstance(policy, FolderPolicy):
        describe(Path(policy.path))  # says what a folder lacks
    source = located(policy, Path())
    try:
        loaded, tokenizer = from_pretrained(
            source.name, policy.dtype or "auto", **dict(source.options)
        )
    except Exception as error:  # transformers and huggingface_hub raise dozens of classes
        raise source.fails(error) from error
    model: Any = loaded
    if isinstance(policy, GgufPolicy):
        # The weights are plain ones by now: saved with these, they would be taken for quantised.
        del model.config.quantization_config
        model.hf_quantizer = None
    elif policy.trust_remote_code:
        setattr(model.config, TRUSTED, True)
    save(model, tokenizer, folder)
    origin = origin_of(policy, getattr(model.config, "_commit_hash", None))
    (folder / ORIGIN).write_text(json.dumps(origin, indent=1) + "\n")


def tiny_tokenizer() -> "PreTrainedTokenizerFast":
    """One token per word of the word problems; <bos> in front, where each prompt starts."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {word: i for i, word in enumerate([*SPECIAL_TOKENS, *vocabulary()])}
    words = Tokenizer(models.WordLevel(ids, unk_token=_UNK))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyrefly: ignore
    words.post_processor = processors.TemplateProcessing(  # pyrefly: ignore
        single=f"{_BOS} $A", special_tokens=[(_BOS, ids[_BOS])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token=_PAD,
        bos_token=_BOS,
        eos_token=_EOS,
        unk_token=_UNK,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def tiny_model(
    policy: TinyPolicy, tokenizer: "PreTrainedTokenizerFast", seed: int
) -> "PreTrainedModel":
    """A Llama of the given size with fresh fp32 weights drawn from `seed`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=policy.hidden_size,
        intermediate_size=policy.feed_forward,
        num_hidden_layers=policy.layers,
        num_attention_heads=policy.heads,
        max_position_embeddings=MAX_POSITIONS,
        initializer_range=0.05,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def demonstration_mix(
    pairs: list[tuple[str, str]], tokenizer: "PreTrainedTokenizerFast"
) -> pl.DataFrame:
    """Demonstrations as a mix of positives: reward and advantage 1, no log mu, EOS at the end."""
    prompts, completions = zip(*pairs, strict=True)
    bodies = tokenizer(list(completions), add_special_tokens=False)["input_ids"]
    return pl.DataFrame(
        {
            "prompt_id": [f"demonstration {i}" for i in range(len(pairs))],
            "sample_index": 0,
            "iteration": 0,
            "reward": 1.0,
            "advantage": 1.0,
            "prompt_token_ids": tokenizer(list(prompts))["input_ids"],
            "token_ids": [[*ids, tokenizer.eos_token_id] for ids in bodies],
            "logprobs": None,
            "logprob": None,
        }
    )


def _pretraining(policy: TinyPolicy) -> Training:
    """`positives` weighs every demonstration 1 and never reads mu: maximum likelihood."""
    return Training(
        objective="positives",
        learning_rate=policy.learning_rate,
        schedule="cosine",
        warmup_steps=min(20, policy.pretrain_steps),
        betas=(0.9, 0.95),
        weight_decay=0.01,
        max_grad_norm=1.0,
        batch_size=policy.batch_size,
    )


def _derived(seed: int, what: str) -> int:
    """A seed for `what` alone, so that one use of randomness does not shift another."""
    return int.from_bytes(hashlib.sha256(f"{seed} {what}".encode()).digest()[:4], "big")
