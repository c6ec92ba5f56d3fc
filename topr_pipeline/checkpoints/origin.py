"""Where a base policy comes from: revision or content hash, and licence."""

import hashlib
from pathlib import Path

from topr_pipeline.checkpoints.sources import gguf_file
from topr_pipeline.experiment import FolderPolicy, GgufPolicy, HubPolicy
from topr_pipeline.tables import content_hash


def origin_of(policy: FolderPolicy | HubPolicy | GgufPolicy, commit: str | None) -> dict[str, str]:
    """Facts that identify what was loaded, without a path of this machine; no licence: not said.

    `commit` is that of a Hub model, as transformers resolved its revision.
    """
    match policy:
        case HubPolicy():
            said = {
                "source": "hub",
                "id": policy.id,
                "revision": policy.revision,
                "commit": commit,
                "license": _of_hub(policy),
            }
        case FolderPolicy():
            folder = Path(policy.path)
            said = {
                "source": "folder",
                "sha256": content_hash(folder),
                "license": _of_card(folder / "README.md"),
            }
        case GgufPolicy():
            file = gguf_file(policy, Path())
            said = {
                "source": "gguf",
                "file": file.name,
                "sha256": _sha256(file),
                "license": _of_gguf(file),
            }
    return {key: value for key, value in said.items() if value is not None}


def _of_hub(policy: HubPolicy) -> str | None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        card = hf_hub_download(policy.id, "README.md", revision=policy.revision)
    except (EntryNotFoundError, OSError):  # no model card, or none in the cache
        return None
    return _of_card(Path(card))


def _of_card(readme: Path) -> str | None:
    from huggingface_hub import ModelCard

    if not readme.is_file():
        return None
    license_ = ModelCard.load(readme, ignore_metadata_errors=True).data.get("license")
    return None if license_ is None else str(license_)


def _of_gguf(file: Path) -> str | None:
    from gguf import GGUFReader

    field = GGUFReader(file).get_field("general.license")
    return None if field is None else str(field.contents())


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
