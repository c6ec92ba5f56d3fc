"""Low-rank updates through peft: put into a model in place, and merged into its weights."""

from typing import TYPE_CHECKING, Any

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Training

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def add_lora(model: "PreTrainedModel", training: Training, seed: int) -> Any:
    """Freeze the weights and add trainable updates of them; what `merge` wants, None without any.

    Their first values come from `seed`. The model stays of its own class. Raises ToprError for
    layers that it has not.
    """
    if training.lora is None:
        return None
    from peft import LoraConfig, LoraModel
    from transformers import set_seed

    config = LoraConfig(
        r=training.lora.rank,
        lora_alpha=training.lora.alpha,
        target_modules=list(training.lora.targets) or "all-linear",
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    set_seed(seed)
    try:
        return LoraModel(model, config, "default")
    except ValueError as error:
        raise ToprError(f"training.lora {training.lora.model_dump()}: {error}") from error


def merge(adapters: Any) -> None:
    """Add the updates to the weights of the model and take the adapters out of it again."""
    if adapters is not None:
        adapters.merge_and_unload()
