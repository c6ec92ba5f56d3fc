"""Policies as folders in Hugging Face format: their facts, loading and saving.

Only safetensors weights, nothing from a network, and no code from the folder unless the YAML said
so when the base policy was prepared. transformers is imported where it is used: the facts are read
without it.
"""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from safetensors import safe_open

from topr_pipeline.errors import ToprError
from topr_pipeline.solutions.tokenize import trusts_remote_code
from topr_pipeline.tables import disk_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ORIGIN = "origin.json"
"""Beside the base policy's weights: where they come from, by revision or hash, and the licence."""


def describe(folder: Path) -> dict[str, Any]:
    """architecture, parameters (tied weights count once), dtype, vocabulary and bytes of a policy.

    Reads `config.json` and the headers of the safetensors files, and for a base policy where it
    comes from. Raises ToprError when one is missing or unreadable.
    """
    config_path, shards = folder / "config.json", sorted(folder.glob("*.safetensors"))
    if not config_path.is_file() or not shards:
        missing = "*.safetensors" if config_path.is_file() else "config.json"
        raise ToprError(
            f"no {missing} in the policy folder {folder}: a folder in Hugging Face format with "
            "safetensors weights is wanted"
        )
    parameters, dtypes = 0, set()
    try:
        config = json.loads(config_path.read_text())
        for shard in shards:
            with safe_open(shard, framework="np") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                    tensor = tensors.get_slice(name)
                    parameters += math.prod(tensor.get_shape())
                    dtypes.add(tensor.get_dtype())
    except Exception as error:
        raise _unreadable(folder, error) from error
    origin = folder / ORIGIN
    return {
        **(json.loads(origin.read_text()) if origin.is_file() else {}),
        "architecture": (config.get("architectures") or [config.get("model_type")])[0],
        "parameters": parameters,
        "dtype": ", ".join(sorted(dtypes)),
        "vocabulary": config.get("vocab_size"),
        "bytes": sum(shard.stat().st_size for shard in shards),
    }


def load(
    folder: Path, dtype: Literal["float32", "auto"]
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """Model (on the CPU) and tokenizer; `auto` is the dtype that the weights are stored in.

    Raises ToprError for a folder that is not a causal language model with safetensors weights.
    """
    describe(folder)
    try:
        return from_pretrained(
            str(folder), dtype, trust_remote_code=trusts_remote_code(folder), local_files_only=True
        )
    except (OSError, ValueError, ImportError) as error:
        raise _unreadable(folder, error) from error


def from_pretrained(
    name: str, dtype: str, **options: Any
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """Model and tokenizer as transformers loads them, from safetensors (or GGUF) weights alone."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _hide_bars()
    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, use_safetensors=True, **options)
    tokenizer: PreTrainedTokenizerBase | None = AutoTokenizer.from_pretrained(name, **options)
    if tokenizer is None:
        raise ValueError("it has no tokenizer")
    for how_loaded in ("is_local", "local_files_only"):  # else saved as if it were a setting
        tokenizer.init_kwargs.pop(how_loaded, None)
    return model, tokenizer


def save(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    folder: Path,
    weights: "Mapping[str, Tensor] | None" = None,
) -> None:
    """Write weights, configuration and tokenizer; equal policies give equal bytes.

    `weights` are the model's where its own are spread over processes. Raises ToprError for a full
    disk.
    """
    _hide_bars()
    with disk_errors(folder):
        model.save_pretrained(folder, state_dict=None if weights is None else dict(weights))
        tokenizer.save_pretrained(folder)


def _hide_bars() -> None:
    """No bars over reading and writing weights: progress is told by whoever called the stage."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def _unreadable(folder: Path, error: Exception) -> ToprError:
    return ToprError(
        f"the policy folder {folder} cannot be read ({error}); a causal language model in Hugging "
        "Face format with safetensors weights and a tokenizer is wanted"
    )
