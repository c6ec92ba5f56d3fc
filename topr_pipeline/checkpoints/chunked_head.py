"""The LM head and the softmax over it, a chunk of positions at a time, computed again in backward.

With N positions and a vocabulary of V, logits are N x V: 4 GB in fp32 for 8,000 tokens and 128,000
words, several times over in backward. Here two buffers of one chunk exist, whatever N and V are,
or what is less than two in sum.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CPU_CHUNK, CHUNK = 2**26, 2**29
"""Bytes of one chunk's logits in fp32. Smaller chunks add up the weight's gradient more often."""

AT_ONCE = 3
"""By how much the chunks of a head that is no plain layer are smaller. Its steps are torch's own,
each with a result of its own: up to six of them at once, with a cap."""


class Shaping(NamedTuple):
    """What a model does to its logits: cap * tanh(scale * logits / cap), or scale * logits."""

    scale: float = 1.0
    cap: float | None = None

    def apply(self, logits: Tensor) -> Tensor:
        """The shaped logits; the very same where there is nothing to do."""
        if self.scale != 1:
            logits = logits * self.scale
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)

    def apply_(self, logits: Tensor) -> Tensor:
        """`apply`, in place."""
        if self.scale != 1:
            logits.mul_(self.scale)
        return logits if self.cap is None else logits.div_(self.cap).tanh_().mul_(self.cap)

    def slope_(self, shaped: Tensor | None, grad: Tensor) -> Tensor:
        """The gradient by the logits given that by the `shaped` ones, in place of both.

        `shaped` is read where there is a cap alone.
        """
        if self.cap is not None and shaped is not None:
            grad.mul_(shaped.div_(self.cap).square_().neg_().add_(1))
        return grad.mul_(self.scale) if self.scale != 1 else grad


def token_logprobs(
    head: nn.Module, hidden_NH: Tensor, target_N: Tensor, vocabulary: int, shaping: Shaping
) -> tuple[Tensor, Tensor]:
    """Log-prob (with gradient) and entropy (without) at N positions, fp32.

    A plain linear head is computed in buffers that are used again and again; any other, such as one
    with LoRA, through its own forward and torch's checkpointing. `head` is called without hooks.
    """
    chunk = CPU_CHUNK if hidden_NH.device.type == "cpu" else CHUNK
    chunk = chunk if type(head) is nn.Linear else chunk // AT_ONCE
    rows = max(1, chunk // (4 * vocabulary))
    if type(head) is nn.Linear:
        device = hidden_NH.device.type
        mixed = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if mixed else hidden_NH.dtype
        with torch.autocast(device, enabled=False):
            return _LinearHead.apply(
                hidden_NH, head.weight, head.bias, target_N, shaping, rows, dtype
            )

    def one(hidden_CH: Tensor, target_C: Tensor) -> tuple[Tensor, Tensor]:
        logits_CV = shaping.apply(head.forward(hidden_CH).float())
        logprobs_CV = logits_CV.log_softmax(1)
        with torch.no_grad():
            entropy_C = -(logprobs_CV.exp() * logprobs_CV).sum(1)
        return logprobs_CV.gather(1, target_C[:, None])[:, 0], entropy_C

    parts = [
        checkpoint(one, *part, use_reentrant=False, preserve_rng_state=False)
        for part in zip(hidden_NH.split(rows), target_N.split(rows), strict=True)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


class _LinearHead(torch.autograd.Function):
    """log softmax(shaping(W h + b)) at the targets.

    Its gradient by the shaped logits is one_hot(target) - p. Products are in `dtype`, all else in
    fp32, as under autocast.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        target_N: Tensor,
        shaping: Shaping,
        rows: int,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies; kept for backward are the inputs and the log denominators."""
        ctx.shaping, ctx.rows, ctx.dtype = shaping, rows, dtype
        logits = _Logits(weight_VH, bias_V, shaping, rows, dtype)
        exp_CV = torch.empty_like(logits.buffer_CV)
        logprob_N, total_N, entropy_N = (
            torch.empty(len(target_N), device=hidden_NH.device) for _ in range(3)
        )
        for at in range(0, len(target_N), rows):
            part = slice(at, at + rows)
            logits_CV = logits(hidden_NH[part])
            total_N[part] = logits_CV.amax(1)
            logits_CV.sub_(total_N[part, None])
            chosen_C = logits_CV.gather(1, target_N[part, None])[:, 0]
            e_CV = torch.exp(logits_CV, out=exp_CV[: len(logits_CV)])
            sum_C = e_CV.sum(1)
            total_N[part] += sum_C.log()
            logprob_N[part] = chosen_C - sum_C.log()
            entropy_N[part] = sum_C.log() - logits_CV.mul_(e_CV).sum(1) / sum_C
        del logits, exp_CV
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, target_N, total_N)
        ctx.mark_non_differentiable(entropy_N)
        return logprob_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """grad * (one_hot - p), through shaping and the product."""
        hidden_NH, weight_VH, bias_V, target_N, total_N = ctx.saved_tensors
        logits = _Logits(weight_VH, bias_V, ctx.shaping, ctx.rows, ctx.dtype)
        wants_weight = ctx.needs_input_grad[1]
        dweight_VH = torch.zeros_like(weight_VH, dtype=torch.float32) if wants_weight else None
        dbias_V = None if bias_V is None else torch.zeros_like(bias_V, dtype=torch.float32)
        dhidden_NH = torch.empty_like(hidden_NH)
        kept_CV = torch.empty_like(logits.buffer_CV) if ctx.shaping.cap is not None else None
        for at in range(0, len(target_N), ctx.rows):
            part = slice(at, at + ctx.rows)
            logits_CV = logits(hidden_NH[part])
            shaped_CV = None if kept_CV is None else kept_CV[: len(logits_CV)].copy_(logits_CV)
            p_CV = logits_CV.sub_(total_N[part, None]).exp_()
            grad_C, target_C = grads[0][part, None], target_N[part, None]
            grad_CV = p_CV.mul_(-grad_C).scatter_add_(1, target_C, grad_C)
            grad_CV = ctx.shaping.slope_(shaped_CV, grad_CV)
            if dbias_V is not None:
                dbias_V += grad_CV.sum(0)
            grad_CV, hidden_CH = grad_CV.to(ctx.dtype), hidden_NH[part].to(ctx.dtype)
            dhidden_NH[part] = grad_CV @ logits.weight_VH
            if dweight_VH is not None and ctx.dtype == torch.float32:
                dweight_VH.addmm_(grad_CV.T, hidden_CH)
            elif dweight_VH is not None:
                dweight_VH += grad_CV.T @ hidden_CH
        return dhidden_NH, dweight_VH, dbias_V, None, None, None, None


class _Logits:
    """Shaped logits of one chunk after the other, in the same memory."""

    def __init__(
        self,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        shaping: Shaping,
        rows: int,
        dtype: torch.dtype,
    ):
        self.weight_VH, self.bias_V, self.shaping = weight_VH.to(dtype), bias_V, shaping
        self.buffer_CV = torch.empty(rows, len(weight_VH), device=weight_VH.device)

    def __call__(self, hidden_CH: Tensor) -> Tensor:
        out_CV = self.buffer_CV[: len(hidden_CH)]
        if self.weight_VH.dtype == torch.float32:
            torch.mm(hidden_CH.float(), self.weight_VH.T, out=out_CV)
        else:
            out_CV.copy_(hidden_CH.to(self.weight_VH.dtype) @ self.weight_VH.T)
        if self.bias_V is not None:
            out_CV += self.bias_V
        return self.shaping.apply_(out_CV)
