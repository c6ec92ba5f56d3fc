"""Log-probabilities of the samples of a prompt at the cost of one prompt and its samples.

The samples of a prompt share its prefix: they are run as one row `prompt, sample 1, ..., sample n`
with the position ids that each would have alone, so a forward computes P + sum(R) tokens and not
sum(P + R), and holds no padding. `prefix_attention` sees to who attends to whom.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from topr_pipeline.checkpoints.batches import Group, Sample
from topr_pipeline.checkpoints.logprobs import (
    CompletionLogprobs,
    completion_logprobs,
    logprobs_at,
    pretrained,
)
from topr_pipeline.checkpoints.prefix_attention import NAME, Layout, NotShareable
from topr_pipeline.checkpoints.processes import everyones

FULL, HALF = 1e-4, 0.05
"""Mean difference of log-probs per token that passes for rounding, in fp32 and in half precision:
it is about 1e-6 and 0.01, and under a wrong mask 0.1 and more."""


class GroupLogprobs:
    """log pi of groups of samples, with gradients, each prompt's prefix computed once.

    Made once per model and called once per forward. Before its first call (or in `verify`) it is
    compared with the plain path, every sample with its own copy of the prompt, and where the
    architecture does not allow it, switched off with one warning that says why.
    """

    def __init__(self, shares_prefix: bool = True):
        self.shares_prefix, self.verified = shares_prefix, not shares_prefix
        self._warned = False

    def __call__(self, model: nn.Module, groups: Sequence[Group]) -> CompletionLogprobs:
        """Per completion token, the samples in the order of the groups.

        `model` may be wrapped (peft, DDP, FSDP2); it is called once, as a module, and in eval mode.
        """
        self.verify(model, groups)
        if self.shares(model, [s for g in groups for s in g.samples]):
            return packed_logprobs(model, groups)
        return _plain(model, groups)

    def verify(self, model: nn.Module, groups: Sequence[Group]) -> None:
        """Compare both ways on a few short rows, once; `shares_prefix` is then what holds.

        In all processes together: what one of them cannot share, none shares.
        """
        if self.verified:
            return
        self.verified = True
        inner = pretrained(model)
        before = inner.config._attn_implementation or "eager"
        own = _difference(model, [_shortened(groups[0], 48), _shortened(groups[-1], 32)])
        reason = next(filter(None, everyones(own)), None)
        if reason:
            self.shares_prefix = False
            inner.set_attn_implementation(before)
            self._warn(f"{type(inner).__name__} cannot share prompts: {reason}")

    def shares(self, model: nn.Module, samples: Sequence[Sample]) -> bool:
        """Whether these samples would share prompts, once verified: to cut a batch by their cost.

        Not where one is longer than a sliding window, which is warned of.
        """
        config = pretrained(model).config.get_text_config()
        names = "sliding_window", "attention_chunk_size"
        window = min((w for name in names if (w := getattr(config, name, None))), default=None)
        longest = max(s.tokens for s in samples)
        if not self.shares_prefix or window is None or longest <= window:
            return self.shares_prefix
        self._warn(
            f"samples of up to {longest} tokens exceed the attention window of {window}, where "
            "prompts are not shared"
        )
        return False

    def _warn(self, reason: str) -> None:
        if not self._warned:
            logging.getLogger(__name__).warning(
                "%s. Log-probs are computed with a copy of the prompt per sample: the same "
                "numbers, more slowly",
                reason,
            )
        self._warned = True


def packed_logprobs(model: nn.Module, groups: Sequence[Group]) -> CompletionLogprobs:
    """log pi of the groups' samples from one row without a repeated or padded token.

    Switches the model to our attention function, for good: with gradient checkpointing it is called
    in backward too. Raises NotShareable for a model whose layers want something else.
    """
    return _packed(model, groups)[0]


def _packed(model: nn.Module, groups: Sequence[Group]) -> tuple[CompletionLogprobs, Layout]:
    token_ids, position_ids, predicting_N, layout = _laid_out(groups)
    inner = pretrained(model)
    inner.set_attn_implementation(NAME)
    if inner.config._attn_implementation != NAME:
        raise NotShareable("its layers take no attention functions")
    inputs = {
        "input_ids": torch.tensor([token_ids]),
        "position_ids": torch.tensor([position_ids]),
        "attention_mask": torch.ones(1, 1, 1, 1),  # of four axes, so that none is made
        "shared_prefix": layout,
    }
    result = logprobs_at(
        model, inputs, predicting_N, [s.token_ids for g in groups for s in g.samples]
    )
    layers = inner.config.get_text_config().num_hidden_layers
    if layout.calls != layers:
        raise NotShareable(f"{layout.calls} of its {layers} layers take attention functions")
    return result, layout


def _plain(model: nn.Module, groups: Sequence[Group]) -> CompletionLogprobs:
    samples = [s for g in groups for s in g.samples]
    return completion_logprobs(
        model, [s.prompt_ids for s in samples], [s.token_ids for s in samples]
    )


def _laid_out(groups: Sequence[Group]) -> tuple[list[int], list[int], list[int], Layout]:
    """Token ids, position ids, the positions that predict the samples' tokens, and the layout.

    A sample's first token is predicted at the prompt's end, and nothing at its own last token, so
    that is left out. A lone sample is one segment with its prompt.
    """
    tokens: list[int] = []
    positions: list[int] = []
    predicting: list[int] = []
    layout = Layout([], [])
    for group in groups:
        start, prompt = len(tokens), len(group.prompt_ids)
        end = start + prompt
        tokens += group.prompt_ids
        positions += range(prompt)
        lone = len(group.samples) == 1
        if not lone:
            layout.segments.append((start, end))
        for sample in group.samples:
            at, inner = len(tokens), len(sample.token_ids) - 1
            tokens += sample.token_ids[:-1]
            positions += range(prompt, prompt + inner)
            predicting += [end - 1, *range(at, at + inner)]
            if lone or inner:
                layout.segments.append((start if lone else at, at + inner))
        if not lone and len(tokens) > end:
            layout.shared.append((start, end, len(tokens)))
    return tokens, positions, predicting, layout


def _shortened(group: Group, length: int) -> Group:
    """Three samples of its own, cut short, to compare the two paths on."""
    prompt = group.prompt_ids[-length:]
    samples = (replace(group.samples[i % len(group.samples)], prompt_ids=prompt) for i in range(3))
    cut = (replace(s, token_ids=s.token_ids[: 24 - 4 * i]) for i, s in enumerate(samples))
    return Group(prompt, tuple(cut))


@torch.no_grad()
def _difference(model: nn.Module, groups: Sequence[Group]) -> str | None:
    """Why the model cannot share prompts; None when both paths give the same log-probs."""
    plain = _plain(model, groups)
    try:
        packed, layout = _packed(model, groups)
    except NotShareable as error:
        return str(error)
    except torch.OutOfMemoryError:
        raise  # says nothing about the architecture
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        return f"its forward refuses a packed row ({error})"
    off = float((plain.logprobs_BT - packed.logprobs_BT).abs().sum() / plain.mask_BT.sum())
    if not off <= (FULL if layout.dtype in (torch.float32, torch.float64) else HALF):
        return f"its log-probs differ by {off:.2g} per token from those without sharing"
    return None
