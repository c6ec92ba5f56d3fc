"""What is known of an artifact on disk: a small JSON file beside it, written after it.

    data/tiny/iter_01/mix.parquet       the artifact
    data/tiny/iter_01/mix.json          its manifest

A manifest says from which code and inputs the artifact came. An artifact whose manifest is missing
or says another content hash was not finished and is made again.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from topr_pipeline.tables import atomic_path


@dataclass(frozen=True)
class Manifest:
    """`inputs` maps each parent's key to the data version that was read."""

    code_version: str
    data_version: str
    inputs: Mapping[str, str]
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
        return Manifest(**json.loads(path.read_text()))
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError, TypeError):
        return None
