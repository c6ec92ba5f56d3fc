"""Log-probabilities of completions under a causal language model, without ever holding its logits.

The model's body runs over whole rows, its LM head over the positions that predict a completion
token, a chunk of them at a time; backward computes each chunk's logits again. So memory does not
grow with vocabulary times tokens: it is the hidden states and one chunk of logits.

Rows are padded on the right and told apart from padding by their lengths, never by token id: EOS
stays in, also where it doubles as the padding token. On the right, padding changes no position id
and is seen by no token of a causal model, so no mask is needed.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from topr_pipeline.checkpoints.chunked_head import Shaping, token_logprobs
from topr_pipeline.errors import ToprError

_PROBE = (-300.0, -40.0, -3.0, -0.5, 0.0, 0.25, 1.0, 7.0, 90.0)
"""Sent through a model in place of logits, to see what it does to them."""


class CompletionLogprobs(NamedTuple):
    """Per completion token, fp32, in nats. T is the longest completion.

    Entries past a row's end are 0 and False in `mask_BT`. The entropy of the policy's next-token
    distribution is detached.
    """

    logprobs_BT: Tensor
    entropy_BT: Tensor
    mask_BT: Tensor

    @property
    def logprob_B(self) -> Tensor:
        """log pi of the whole completions."""
        return self.logprobs_BT.sum(1)


def completion_logprobs(
    model: nn.Module,
    prompt_ids: Sequence[Sequence[int]],
    completion_ids: Sequence[Sequence[int]],
) -> CompletionLogprobs:
    """log pi of each completion given its prompt, per token, with gradients.

    The plain path: each completion with its own copy of the prompt. Every prompt has at least one
    token (BOS will do), since a token is predicted by the one before. What the model does to its
    logits (soft-capping, scaling) is done here too; ToprError for a model that does anything else.
    """
    rows = [[*p, *c[:-1]] for p, c in zip(prompt_ids, completion_ids, strict=True)]
    width = max(map(len, rows))
    input_ids_BT = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    position_N = [
        b * width + t
        for b, (row, tokens) in enumerate(zip(rows, completion_ids, strict=True))
        for t in range(len(row) - len(tokens), len(row))
    ]
    return logprobs_at(model, {"input_ids": input_ids_BT}, position_N, completion_ids)


def logprobs_at(
    model: nn.Module,
    inputs: dict[str, Any],
    position_N: Sequence[int],
    completion_ids: Sequence[Sequence[int]],
) -> CompletionLogprobs:
    """log pi of the completions' N tokens, each predicted at a position of a forward on `inputs`.

    `position_N` indexes the forward's flattened tokens; one position may predict several tokens.
    `model` may be wrapped (peft, DDP, FSDP2): it is called once, as a module.
    """
    inner = pretrained(model)
    inputs = {k: v.to(inner.device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
    index_N = torch.tensor(position_N, device=inner.device)
    target_N = torch.tensor([t for c in completion_ids for t in c], device=inner.device)
    vocabulary = int(inner.get_input_embeddings().weight.shape[0])  # pyrefly: ignore
    found: list[tuple[Tensor, Tensor]] = []

    def compute(head: nn.Module, hidden_BTH: Tensor) -> None:
        hidden_NH = hidden_BTH.flatten(0, 1)[index_N]
        found.append(token_logprobs(head, hidden_NH, target_N, vocabulary, _shaping(inner)))

    with _head_replaced(inner, compute):
        seen = model(**inputs, use_cache=False).logits
    _check_head(inner, seen, len(found))
    [(logprob_N, entropy_N)] = found
    length_B = torch.tensor([len(c) for c in completion_ids], device=inner.device)
    mask_BT = torch.arange(max(map(len, completion_ids)), device=inner.device) < length_B[:, None]
    empty_BT = torch.zeros(mask_BT.shape, device=inner.device)
    return CompletionLogprobs(
        empty_BT.masked_scatter(mask_BT, logprob_N),
        empty_BT.masked_scatter(mask_BT, entropy_N),
        mask_BT,
    )


def pretrained(model: nn.Module) -> PreTrainedModel:
    """The transformers model within its wrappers."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            return module
    raise ToprError(f"{type(model).__name__} is no transformers model; policy")


@contextmanager
def _head_replaced(
    model: PreTrainedModel, take: Callable[[nn.Module, Tensor], None]
) -> Generator[None]:
    """Within the block, the LM head gives its forward and its input to `take`, and returns _PROBE.

    Hooks and not a call of the body, because what a model does between body and head is then still
    done by itself, and under a wrapper (autocast, FSDP2) the head runs where it belongs.
    """
    head = model.get_output_embeddings()
    if head is None:
        raise ToprError(f"{type(model).__name__} has no LM head; use a causal language model")

    def before(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        take(head, args[0])
        return (args[0][:1, :1].detach(), *args[1:])

    def after(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        return torch.tensor([[_PROBE]], device=output.device)

    hooks = head.register_forward_pre_hook(before), head.register_forward_hook(after)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _shaping(model: PreTrainedModel) -> Shaping:
    """The factor and the cap that a model applies to its logits, as its configuration says.

    Cohere multiplies by `logit_scale`, Granite divides by `logits_scaling`, Falcon-H1 multiplies by
    `lm_head_multiplier`, the Gemmas cap at `final_logit_softcapping`.
    """
    config = model.config.get_text_config()
    scale = getattr(config, "logit_scale", None) or 1.0
    scale *= getattr(config, "lm_head_multiplier", None) or 1.0
    scale /= getattr(config, "logits_scaling", None) or 1.0
    cap = getattr(config, "final_logit_softcapping", None)
    return Shaping(scale, cap or getattr(config, "logits_soft_cap", None))


def _check_head(model: PreTrainedModel, seen: Tensor, calls: int) -> None:
    """Raise ToprError unless the model called its head once and shaped the probe as we shape."""
    name = type(model).__name__
    if calls != 1:
        raise ToprError(
            f"{name} calls its LM head as a module {calls} times in a forward, so its log-probs "
            "cannot be computed in chunks; policy; use a decoder-only causal language model"
        )
    shaping = _shaping(model)
    expected = shaping.apply(torch.tensor(_PROBE, device=seen.device))
    if seen.numel() != expected.numel() or not torch.allclose(
        seen.detach().float().flatten(), expected, rtol=1e-2
    ):
        raise ToprError(
            f"{name} does something to its logits that is not known here (other than a factor of "
            f"{shaping.scale:g} and a cap of {shaping.cap}), so its log-probs cannot be computed "
            "in chunks; policy; use a model with plain, scaled or soft-capped logits"
        )
