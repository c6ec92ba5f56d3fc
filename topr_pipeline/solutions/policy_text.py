"""What a policy reads and says, as text and as tokens: the same for every engine."""

from pathlib import Path
from typing import Any

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Sampling
from topr_pipeline.solutions.engine import Completion
from topr_pipeline.solutions.tokenize import cut_at_stop, prompt_tokens, trusts_remote_code


class PolicyText:
    """Tokenizer, context and EOS tokens of a policy's folder; no weights are loaded.

    Prompts are read by `prompt_tokens`. `eos` are the EOS tokens of generation config and
    tokenizer, `vocabulary` the number of tokens that the model knows. `dtype` is that
    of the stored weights, such as "bfloat16".
    """

    def __init__(self, policy: Path, sampling: Sampling):
        """Raises ToprError when `policy` is no folder in Hugging Face format."""
        if not (policy / "config.json").is_file():
            raise ToprError(
                f"no model in {policy} (config.json is missing); policy; "
                "accepted: a folder in Hugging Face format"
            )
        from transformers import AutoConfig, AutoTokenizer, GenerationConfig

        self.sampling = sampling
        self.trusted = trusts_remote_code(policy)
        # Any: the auto classes return unions of hundreds of types
        tokenizer: Any = AutoTokenizer.from_pretrained(policy, trust_remote_code=self.trusted)
        config: Any = AutoConfig.from_pretrained(policy, trust_remote_code=self.trusted)
        has_own = (policy / "generation_config.json").is_file()
        generation: Any = (
            GenerationConfig.from_pretrained(policy)
            if has_own
            else GenerationConfig.from_model_config(config)
        )
        self.tokenizer = tokenizer
        read: Any = config.get_text_config()
        self.vocabulary: int = getattr(read, "vocab_size", None) or len(tokenizer)
        self.context = sampling.context(getattr(read, "max_position_embeddings", None))
        self.dtype = str(config.dtype or "float32").removeprefix("torch.")
        eos = (generation.eos_token_id, tokenizer.eos_token_id)
        self.eos = {id_ for ids in eos for id_ in _as_list(ids)}

    def encoded(self, prompt: str) -> list[int]:
        """The prompt's token ids; ToprError for none, or for more than the context has room for."""
        ids, new = prompt_tokens(self.tokenizer, prompt), self.sampling.max_tokens
        if not ids:
            raise ToprError(f"prompt {prompt!r} has no tokens; prompts; give every prompt a text")
        if self.context is not None and len(ids) + new > self.context:
            raise ToprError(
                f"{len(ids)} prompt tokens and {new} new ones exceed the "
                f"model's context of {self.context}; sampling.max_tokens, prompt {prompt[:80]!r}; "
                "lower sampling.max_tokens or shorten the prompt"
            )
        return ids

    def decoded(self, tokens: list[int]) -> str:
        """The text of `tokens`, without special tokens."""
        return self.tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def completion(self, prompt: list[int], tokens: list[int], logprobs: list[float]) -> Completion:
        """The sample of which an engine gives tokens (R) and raw log-probs (R)."""
        ended = bool(tokens) and tokens[-1] in self.eos
        text = self.decoded(tokens[:-1] if ended else tokens)
        cut = cut_at_stop(text, self.sampling.stop)
        reason = "stop" if ended or cut is not None else "length"
        return Completion(text if cut is None else cut, prompt, tokens, logprobs, reason)


def _as_list(eos: int | list[int] | None) -> list[int]:
    if eos is None:
        return []
    return [eos] if isinstance(eos, int) else list(eos)
