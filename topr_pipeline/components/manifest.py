"""What is known of an artifact on disk: a small JSON file beside it, written after it.

    data/tiny/iter_01/mix.parquet       the artifact
    data/tiny/iter_01/mix.json          its manifest

A manifest says from which code and inputs the artifact came. It is removed just before the artifact
is renamed into place and written just after: an artifact without one was not finished.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from topr_pipeline.tables import atomic_path


@dataclass(frozen=True)
class Manifest:
    """`code` maps what the stage reads of the YAML to its fingerprint, `inputs` each parent's key
    to the data version that was read. `signature` is that of the files, `limits` the fingerprint
    of the limits that the checks were made with.
    """

    code: Mapping[str, str]
    data_version: str
    inputs: Mapping[str, str]
    signature: str = ""
    limits: str = ""
    seconds: float = 0.0
    headline: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    failed_checks: Mapping[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write atomically."""
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(asdict(self), indent=1, sort_keys=True))


def read_manifest(path: Path) -> Manifest | None:
    """The manifest at `path`; None when it is missing or not readable as one."""
    try:
        return _MANIFEST.validate_json(path.read_bytes())
    except (FileNotFoundError, IsADirectoryError, ValidationError):
        return None


_MANIFEST = TypeAdapter(Manifest)
