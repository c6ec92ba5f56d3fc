"""Attention over rows in which the samples of a prompt follow the prompt, stored once.

    prompt a | sample a1 | sample a2 | prompt b | sample b1 | ...

A prompt attends to itself, a sample to its prompt and to itself, all causally. Registered with
transformers as an attention function, so that a model's layers run as they are, over tokens of
which none is padding and none is there twice. Without a layout it is transformers' own `sdpa`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.utils import is_torch_flex_attn_available

NAME = "topr_shared_prefix"

NOT_DONE = {
    "softcap": "soft-capped attention",
    "s_aux": "attention sinks",
    "position_bias": "a bias by position",
}
"""What attention may be asked for by keyword that is not done here."""


class NotShareable(Exception):
    """The model asks for attention that this module does not compute; the message names it."""


@dataclass(eq=False)
class Layout:
    """Where prompts and samples lie in a row of N tokens.

    `segments` are [start, stop) of everything that attends causally to itself. `shared` are
    (p, a, b): the samples in [a, b) attend to all of the prompt in [p, a). `calls` counts the
    layers that attended, `dtype` is what they computed in.
    """

    segments: list[tuple[int, int]]
    shared: list[tuple[int, int, int]]
    calls: int = 0
    dtype: torch.dtype | None = None

    @property
    def tokens(self) -> int:
        """N."""
        return self.segments[-1][1]

    @cached_property
    def _owners(self) -> tuple[list[int], list[int]]:
        """Per token: the number of its segment, and of the segment that it sees whole (or -1)."""
        own, prompt = [0] * self.tokens, [-1] * self.tokens
        number = {}
        for i, (start, stop) in enumerate(self.segments):
            own[start:stop] = [i] * (stop - start)
            number[start] = i
        for p, a, b in self.shared:
            prompt[a:b] = [number[p]] * (b - a)
        return own, prompt

    def visible(self, device: torch.device) -> Callable[[Any, Any, Tensor, Tensor], Tensor]:
        """Whether query i sees key j, as FlexAttention's `mask_mod`."""
        own, prompt = (torch.tensor(x, device=device) for x in self._owners)

        def mask(_: Any, __: Any, i: Tensor, j: Tensor) -> Tensor:
            return ((own[i] == own[j]) & (i >= j)) | (prompt[i] == own[j])

        return mask

    @cached_property
    def block_mask(self) -> Any:
        """FlexAttention's form of `visible`, on the accelerator."""
        from torch.nn.attention.flex_attention import create_block_mask

        device = torch.accelerator.current_accelerator() or torch.device("cpu")
        n = self.tokens
        return create_block_mask(self.visible(device), None, None, n, n, device=str(device))


def shared_prefix_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    shared_prefix: Layout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Any]:
    """transformers' attention function: (1, heads, N, D) in, (1, N, heads, D) out.

    Raises NotShareable where `shared_prefix` is given and the layer wants what is not done here.
    """
    if shared_prefix is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    _refuse_others(module, query, kwargs, shared_prefix)
    shared_prefix.calls, shared_prefix.dtype = shared_prefix.calls + 1, value.dtype
    scale = kwargs.get("scaling")
    query, key, value = _of_one_dtype(query, key, value)
    if query.is_cuda and is_torch_flex_attn_available():  # pragma: no cover (written to the API)
        return flex_attention_forward(
            module, query, key, value, shared_prefix.block_mask, scaling=scale
        )
    if query.device.type == "cpu" and key.shape[-1] == value.shape[-1]:
        out = _Merged.apply(query, key, value, shared_prefix, scale)
    else:
        out = joined(query, key, value, shared_prefix, scale)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, shared_prefix_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def _refuse_others(
    module: nn.Module, query: Tensor, kwargs: dict[str, Any], layout: Layout
) -> None:
    asked = [said for name, said in NOT_DONE.items() if kwargs.get(name) is not None]
    if kwargs.get("is_causal", getattr(module, "is_causal", True)) is False:
        asked.append("attention that is not causal")
    if kwargs.get("dropout"):
        asked.append("dropout")
    if query.shape[0] != 1 or query.shape[2] != layout.tokens:
        asked.append(f"queries of shape {tuple(query.shape)} for {layout.tokens} tokens")
    if asked:
        raise NotShareable(f"its layers want {', '.join(asked)}")


def _of_one_dtype(*tensors: Tensor) -> list[Tensor]:
    """Under autocast queries and keys come in fp32, values in half precision.

    On a CPU the kernel is faster in fp32, several times where the CPU has no bf16 of its own.
    """
    device = tensors[0].device.type
    if torch.is_autocast_enabled(device) and device != "cpu":
        dtype = torch.get_autocast_dtype(device)
    else:
        dtype = reduce(torch.promote_types, (x.dtype for x in tensors))
    return [x.to(dtype) for x in tensors]


# ------------------------------------------------------------------------------------- any device


def joined(q: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float | None) -> Tensor:
    """Samples as a batch, the prompt's keys and values joined to each one's own."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    pieces: list[tuple[int, Tensor]] = []
    for start, stop in layout.segments:
        if not any(a <= start < b for _, a, b in layout.shared):
            own_q, own_k, own_v = (x[:, :, start:stop] for x in (q, k, v))
            rows = scaled_dot_product_attention(own_q, own_k, own_v, is_causal=True, scale=scale)
            pieces.append((start, rows))
    for p, a, b in layout.shared:
        spans = [s for s in layout.segments if a <= s[0] < b]
        n, width = len(spans), max(stop - start for start, stop in spans)

        def padded(x: Tensor, spans: list[tuple[int, int]] = spans) -> Tensor:
            rows = [x[0, :, start:stop].transpose(0, 1) for start, stop in spans]
            return pad_sequence(rows, batch_first=True).transpose(1, 2)

        keys, values = (
            torch.cat([x[:, :, p:a].expand(n, -1, -1, -1), padded(x)], 2) for x in (k, v)
        )
        seen = torch.ones(width, a - p + width, dtype=torch.bool, device=q.device).tril(a - p)
        rows = scaled_dot_product_attention(padded(q), keys, values, seen, scale=scale)
        pieces += [
            (start, rows[i : i + 1, :, : stop - start]) for i, (start, stop) in enumerate(spans)
        ]
    return torch.cat([rows for _, rows in sorted(pieces, key=lambda piece: piece[0])], 2)


# ------------------------------------------------------------------------------------- CPU

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class _Merged(torch.autograd.Function):
    """Attention to oneself and attention to the prompt, computed apart and merged by their sums.

    With l the log of a part's softmax denominator, the whole is sum_i out_i * exp(l_i - l),
    l = log sum_i exp(l_i). The kernel's backward of a part, given the whole's output and l, is just
    that part's share of the gradient. So no key is copied per sample and no mask is read: about 1.4
    times as fast as `joined`.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float | None
    ) -> Tensor:
        """q (1, heads, N, D); k and v may have fewer heads."""
        wide_k, wide_v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        out = torch.empty_like(q.transpose(1, 2).contiguous()).transpose(1, 2)
        total = q.new_empty(q.shape[:-1], dtype=torch.promote_types(q.dtype, torch.float32))
        for a, b in layout.segments:
            own = (x[:, :, a:b] for x in (q, wide_k, wide_v))
            out[:, :, a:b], total[:, :, a:b] = _flash(*own, 0.0, True, scale=scale)
        for p, a, b in layout.shared:
            of_prompt, log_p = _flash(
                _folded(q[:, :, a:b], k), k[:, :, p:a], v[:, :, p:a], 0.0, False, scale=scale
            )
            of_prompt, log_p = of_prompt.reshape(q[:, :, a:b].shape), log_p.reshape(1, -1, b - a)
            whole = torch.logaddexp(log_p, total[:, :, a:b])
            out[:, :, a:b] = (
                of_prompt * (log_p - whole).exp()[..., None]
                + out[:, :, a:b] * (total[:, :, a:b] - whole).exp()[..., None]
            )
            total[:, :, a:b] = whole
        ctx.save_for_backward(q, k, v, out, total)
        ctx.layout, ctx.scale = layout, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Each part's share, added up."""
        q, k, v, out, total = ctx.saved_tensors
        layout, scale, groups = ctx.layout, ctx.scale, q.shape[1] // k.shape[1]
        wide_k, wide_v = (x.repeat_interleave(groups, 1) for x in (k, v))
        dq, dk, dv = torch.empty_like(q), torch.empty_like(wide_k), torch.empty_like(wide_v)
        for a, b in layout.segments:
            own = [x[:, :, a:b] for x in (grads[0], q, wide_k, wide_v, out, total)]
            parts = _flash_backward(*own, 0.0, True, scale=scale)
            dq[:, :, a:b], dk[:, :, a:b], dv[:, :, a:b] = parts
        dk, dv = (x.unflatten(1, (-1, groups)).sum(2) for x in (dk, dv))
        for p, a, b in layout.shared:
            grad, folded_q, folded_out = (_folded(x[:, :, a:b], k) for x in (grads[0], q, out))
            folded_total = total[:, :, a:b].reshape(1, k.shape[1], -1)
            prompt = k[:, :, p:a], v[:, :, p:a]
            parts = _flash_backward(
                grad, folded_q, *prompt, folded_out, folded_total, 0.0, False, scale=scale
            )
            dq[:, :, a:b] += parts[0].reshape(q[:, :, a:b].shape)
            dk[:, :, p:a] += parts[1]
            dv[:, :, p:a] += parts[2]
        return dq, dk, dv, None, None


def _folded(x: Tensor, k: Tensor) -> Tensor:
    """(1, heads, n, D) as (1, heads of k, heads / heads of k * n, D): a key head's queries in one.

    Without a causal mask the order of queries does not matter, and no key head is copied.
    """
    return x.reshape(1, k.shape[1], -1, x.shape[-1])
