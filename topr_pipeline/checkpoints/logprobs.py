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
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from topr_pipeline.errors import ToprError

CHUNK_BYTES = 2**27
"""Of one chunk's logits in fp32. Two more tensors of this size exist while it is in backward."""

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
    found: list[tuple[Tensor, Tensor]] = []
    with _head_replaced(
        inner, lambda head, x: found.append(_by_chunk(inner, head, x, index_N, target_N))
    ):
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


# ------------------------------------------------------------------------------------- the head


@contextmanager
def _head_replaced(
    model: PreTrainedModel, take: Callable[[Callable[[Tensor], Tensor], Tensor], None]
) -> Generator[None]:
    """Within the block, the LM head gives its forward and its input to `take`, and returns _PROBE.

    Hooks and not a call of the body, because what a model does between body and head is then still
    done by itself, and under a wrapper (autocast, FSDP2) the head runs where it belongs.
    """
    head = model.get_output_embeddings()
    if head is None:
        raise ToprError(f"{type(model).__name__} has no LM head; use a causal language model")

    def before(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        take(head.forward, args[0])
        return (args[0][:1, :1].detach(), *args[1:])

    def after(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        return torch.tensor([[_PROBE]], device=output.device)

    hooks = head.register_forward_pre_hook(before), head.register_forward_hook(after)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _by_chunk(
    model: PreTrainedModel,
    head: Callable[[Tensor], Tensor],
    hidden_BTH: Tensor,
    index_N: Tensor,
    target_N: Tensor,
) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy (N) of the targets, from the hidden states at `index_N`."""
    hidden_NH = hidden_BTH.flatten(0, 1)[index_N]
    scale, cap = _shaping(model)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    size = max(1, CHUNK_BYTES // (4 * int(vocabulary)))

    def chunk(hidden_CH: Tensor, target_C: Tensor) -> tuple[Tensor, Tensor]:
        return _TokenLogprobs.apply(_shaped(head(hidden_CH).float(), scale, cap), target_C)

    parts = [
        checkpoint(chunk, *part, use_reentrant=False, preserve_rng_state=False)
        if torch.is_grad_enabled()
        else chunk(*part)
        for part in zip(hidden_NH.split(size), target_N.split(size), strict=True)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


class _TokenLogprobs(torch.autograd.Function):
    """Of logits (C, V): the targets' log-probs, and the entropies, without gradient."""

    @staticmethod
    def forward(ctx: Any, logits_CV: Tensor, target_C: Tensor) -> tuple[Tensor, Tensor]:
        """log softmax at the targets; the probabilities are kept for backward."""
        total_C = logits_CV.logsumexp(1)
        p_CV = (logits_CV - total_C[:, None]).exp_()
        entropy_C = total_C - torch.linalg.vecdot(p_CV, logits_CV)
        ctx.save_for_backward(p_CV, target_C)
        ctx.mark_non_differentiable(entropy_C)
        return logits_CV.gather(1, target_C[:, None])[:, 0] - total_C, entropy_C

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """grad * (one_hot - p)."""
        p_CV, target_C = ctx.saved_tensors
        grad_C = grads[0]
        grad_CV = p_CV * -grad_C[:, None]
        return grad_CV.scatter_add_(1, target_C[:, None], grad_C[:, None]), None


# ------------------------------------------------------------------------------------- shaping


def _shaping(model: PreTrainedModel) -> tuple[float, float | None]:
    """The factor and the cap that a model applies to its logits, as its configuration says.

    Cohere multiplies by `logit_scale`, Granite divides by `logits_scaling`, Falcon-H1 multiplies by
    `lm_head_multiplier`, the Gemmas cap at `final_logit_softcapping`.
    """
    config = model.config.get_text_config()
    scale = getattr(config, "logit_scale", None) or 1.0
    scale *= getattr(config, "lm_head_multiplier", None) or 1.0
    scale /= getattr(config, "logits_scaling", None) or 1.0
    cap = getattr(config, "final_logit_softcapping", None)
    return scale, cap or getattr(config, "logits_soft_cap", None)


def _shaped(logits: Tensor, scale: float, cap: float | None) -> Tensor:
    """cap * tanh(scale * logits / cap), or without a cap scale * logits."""
    if scale != 1:
        logits = logits * scale
    return logits if cap is None else cap * torch.tanh(logits / cap)


def _check_head(model: PreTrainedModel, seen: Tensor, calls: int) -> None:
    """Raise ToprError unless the model called its head once and shaped the probe as we shape."""
    name = type(model).__name__
    if calls != 1:
        raise ToprError(
            f"{name} calls its LM head as a module {calls} times in a forward, so its log-probs "
            "cannot be computed in chunks; policy; use a decoder-only causal language model"
        )
    probe = torch.tensor(_PROBE, device=seen.device)
    scale, cap = _shaping(model)
    expected = _shaped(probe, scale, cap)
    if seen.numel() != probe.numel() or not torch.allclose(
        seen.detach().float().flatten(), expected, rtol=1e-2
    ):
        raise ToprError(
            f"{name} does something to its logits that is not known here (other than a factor of "
            f"{scale:g}, a cap of {cap}), so its log-probs cannot be computed in chunks; policy; "
            "use a model with plain, scaled or soft-capped logits"
        )
