"""Sampling with transformers: batched, finished rows leave the batch, raw log-probs on the way.

`model.generate` is not used: it keeps finished rows to the end, runs a prompt once per sample, and
gives raw log-probs only by keeping the logits of all steps (batch x steps x vocabulary).

Axes: P distinct prompts, B samples, A samples still in the batch, T tokens so far, R tokens of the
completion, V vocabulary.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.generation.logits_process import (
    LogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.utils.logging import disable_progress_bar

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Sampling
from topr_pipeline.solutions.engine import Completion, Request
from topr_pipeline.solutions.policy_text import PolicyText
from topr_pipeline.solutions.tokenize import cut_at_stop

DENSE = 7 / 8
"""Finished rows are taken out when less than this share of the batch is alive: taking out each one
at once would copy the key-value cache at almost every step."""


class TransformersEngine:
    """Samples from a local Hugging Face folder, on the accelerator where there is one.

    A sample ends with any EOS token of the generation config or the tokenizer, with the token that
    completes a stop string, or after `max_tokens`. Requests are grouped by prompt length into
    forward batches of `sampling.batch_size` samples; each prompt of a batch is run once. Equal
    batches and seeds give equal samples on one device and thread count.
    """

    model: Any = None  # the auto classes return a union of hundreds of types
    text: PolicyText

    def start(self, policy: Path, sampling: Sampling) -> None:
        """Load model and tokenizer. ToprError when `policy` is no such folder."""
        self.sampling, self.text = sampling, PolicyText(policy, sampling)
        self.device = torch.accelerator.current_accelerator(check_available=True) or torch.device(
            "cpu"
        )
        disable_progress_bar()  # of loading weights: this project's bars say how far it is
        model: Any = AutoModelForCausalLM.from_pretrained(
            policy, dtype=sampling.dtype, trust_remote_code=self.text.trusted
        )
        self.model = model.to(self.device).eval()
        self.warpers = _warpers(sampling)

    def generate(self, batch: Sequence[Request], seed: int) -> list[list[Completion]]:
        """`n` samples a request; ToprError, before any, for a prompt that exceeds the context."""
        generator = torch.Generator(self.device).manual_seed(seed)
        prompts = [self.text.encoded(r.prompt) for r in batch]
        by_length = sorted(range(len(batch)), key=lambda p: len(prompts[p]))
        wanted = [p for p in by_length for _ in range(batch[p].n)]
        completions: list[list[Completion]] = [[] for _ in batch]
        together = self.sampling.samples_per_call
        for start in range(0, len(wanted), together):
            rows = wanted[start : start + together]
            distinct = list(dict.fromkeys(rows))
            which_B = torch.tensor([distinct.index(p) for p in rows], device=self.device)
            samples = self._sample([prompts[p] for p in distinct], which_B, generator)
            for p, (tokens, logprobs) in zip(rows, samples, strict=True):
                completions[p].append(self.text.completion(prompts[p], tokens, logprobs))
        return completions

    def close(self) -> None:
        self.model = None
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()

    @torch.inference_mode()
    def _sample(
        self, prompts: list[list[int]], which_B: Tensor, generator: torch.Generator
    ) -> list[tuple[list[int], list[float]]]:
        """One sample of `prompts[which_B[b]]` for each b: token ids and raw log-probs."""
        ids_PT, mask_PT = _left_padded(prompts, self.device)
        positions_PT = (mask_PT.cumsum(-1) - 1).clamp(min=0)
        logits_PV, cache = self._forward(ids_PT, mask_PT, positions_PT, None)
        cache.batch_select_indices(which_B)
        logits_AV, mask_AT = logits_PV[which_B], mask_PT[which_B]
        position_A = mask_AT.sum(-1)

        B, R = len(which_B), self.sampling.max_tokens
        tokens_BR = torch.zeros(B, R, dtype=torch.long, device=self.device)
        logprobs_BR = torch.zeros(B, R, device=self.device)
        length_B = torch.full((B,), R, device=self.device)
        row_A = torch.arange(B, device=self.device)
        done_A = torch.zeros(B, dtype=torch.bool, device=self.device)
        eos = torch.tensor(sorted(self.text.eos), dtype=torch.long, device=self.device)
        for step in range(R):
            token_A, logprob_A = self._draw(logits_AV, generator)
            tokens_BR[row_A, step], logprobs_BR[row_A, step] = token_A, logprob_A
            ended_A = (torch.isin(token_A, eos) | self._says_stop(tokens_BR[row_A, : step + 1])) & (
                ~done_A
            )
            length_B[row_A[ended_A]] = step + 1
            done_A |= ended_A
            alive = int((~done_A).sum())
            if alive == 0 or step + 1 == R:
                break
            if alive < DENSE * len(done_A):
                keep = (~done_A).nonzero().squeeze(-1)
                cache.batch_select_indices(keep)
                token_A, mask_AT, position_A = token_A[keep], mask_AT[keep], position_A[keep]
                row_A, done_A = row_A[keep], done_A[keep]
            mask_AT = torch.cat([mask_AT, mask_AT.new_ones(len(mask_AT), 1)], dim=-1)
            logits_AV, cache = self._forward(token_A[:, None], mask_AT, position_A[:, None], cache)
            position_A = position_A + 1
        return [
            (tokens[:n], logprobs[:n])
            for tokens, logprobs, n in zip(
                tokens_BR.tolist(), logprobs_BR.tolist(), length_B.tolist(), strict=True
            )
        ]

    def _says_stop(self, tokens_AT: Tensor) -> Tensor:
        """Per row, whether a stop string is complete."""
        says_A = torch.zeros(len(tokens_AT), dtype=torch.bool, device=self.device)
        if not self.sampling.stop:
            return says_A
        # A stop string that the last token completes began at most as many tokens ago as it has
        # bytes. The end alone is decoded; what it says is confirmed by the whole.
        longest = max(len(stop.encode()) for stop in self.sampling.stop)
        for row, tokens in enumerate(tokens_AT.tolist()):
            end = cut_at_stop(self.text.decoded(tokens[-longest - 1 :]), self.sampling.stop)
            if end is not None:
                says_A[row] = cut_at_stop(self.text.decoded(tokens), self.sampling.stop) is not None
        return says_A

    def _forward(
        self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any
    ) -> tuple[Tensor, Any]:
        """The logits after the last token [rows, V], and the cache that now holds `ids`."""
        out = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits[:, -1].float(), out.past_key_values

    def _draw(self, logits_AV: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A token per row, and its log-prob under the model itself: T=1, the whole vocabulary."""
        log_z_A = logits_AV.logsumexp(-1)
        if not log_z_A.isfinite().all():
            raise ToprError(
                "the policy's logits are not finite; the checkpoint that is sampled from; "
                "it has diverged: train it again with a lower training.learning_rate"
            )
        scores_AV = logits_AV
        for warp in self.warpers:
            scores_AV = warp(None, scores_AV)
        token_A1 = torch.multinomial(scores_AV.softmax(-1), 1, generator=generator)
        return token_A1.squeeze(-1), logits_AV.gather(-1, token_A1).squeeze(-1) - log_z_A


def _warpers(sampling: Sampling) -> list[Any]:
    """What turns raw logits into those that are sampled from, in the order of `model.generate`."""
    warpers: list[LogitsProcessor] = []
    if sampling.temperature != 1:
        warpers.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    return warpers


def _left_padded(prompts: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask [P, T]. The padding's id does not matter: it is masked."""
    width = max(map(len, prompts))
    ids_PT = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=device)
    mask_PT = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
    return ids_PT, mask_PT
