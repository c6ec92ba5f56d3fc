"""Log-probabilities of completions under a causal language model.

Rows are padded on the right and told apart from padding by their lengths, never by token id: EOS
stays in, also where it doubles as the padding token. On the right, padding changes no position id
and is seen by no token. Only the positions that predict a completion token go through the LM head:
logits are [N, V] for N completion tokens, not [B, T, V].
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from topr_pipeline.errors import ToprError


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
    model: PreTrainedModel,
    prompt_ids: Sequence[Sequence[int]],
    completion_ids: Sequence[Sequence[int]],
) -> CompletionLogprobs:
    """log pi of each completion given its prompt, whole and per token, with gradients.

    Every prompt has at least one token (BOS will do), since a token is predicted by the one before.
    Logits are the model's own: soft-capping and scaling apply. Raises ToprError for a model whose
    LM head cannot be restricted to the completions.
    """
    rows = [[*p, *c] for p, c in zip(prompt_ids, completion_ids, strict=True)]
    input_ids_BT = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    attention_BT = torch.zeros_like(input_ids_BT)
    completion_BT = torch.zeros_like(input_ids_BT, dtype=torch.bool)
    for b, row in enumerate(rows):
        input_ids_BT[b, : len(row)] = torch.tensor(row)
        attention_BT[b, : len(row)] = 1
        completion_BT[b, len(prompt_ids[b]) : len(row)] = True
    input_ids_BT, attention_BT, completion_BT = (
        x.to(model.device) for x in (input_ids_BT, attention_BT, completion_BT)
    )
    with _head_only_at(model, completion_BT.roll(-1, dims=1)):
        logits_NV = model(
            input_ids=input_ids_BT, attention_mask=attention_BT, use_cache=False
        ).logits.squeeze(0)
    targets_N = input_ids_BT[completion_BT]
    if logits_NV.shape[:-1] != targets_N.shape:
        raise ToprError(
            f"{type(model).__name__} does not call its LM head as a module, so its log-probs "
            "cannot be restricted to completions; use a decoder-only causal language model"
        )
    logprobs_N = -torch.nn.functional.cross_entropy(logits_NV.float(), targets_N, reduction="none")
    lengths_B = completion_BT.sum(1, keepdim=True)
    is_token_BT = torch.arange(int(lengths_B.max()), device=model.device) < lengths_B
    empty_BT = torch.zeros_like(is_token_BT, dtype=torch.float32)
    with torch.no_grad():
        entropy_N = torch.distributions.Categorical(logits=logits_NV.float()).entropy()
    return CompletionLogprobs(
        empty_BT.masked_scatter(is_token_BT, logprobs_N),
        empty_BT.masked_scatter(is_token_BT, entropy_N),
        is_token_BT,
    )


@contextmanager
def _head_only_at(model: PreTrainedModel, keep_BT: Tensor) -> Generator[None]:
    """Within the block, the LM head sees the hidden states at `keep_BT` alone, as [1, N, H].

    A hook, because what a model does to its logits after the head (soft-capping, scaling) is then
    still done by the model itself; `logits_to_keep` knows only positions common to all rows.
    """
    head = model.get_output_embeddings()
    if head is None:
        raise ToprError(f"{type(model).__name__} has no LM head; use a causal language model")

    def select(_: torch.nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (args[0][keep_BT].unsqueeze(0), *args[1:])

    hook = head.register_forward_pre_hook(select)
    try:
        yield
    finally:
        hook.remove()
