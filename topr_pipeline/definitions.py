"""The code location: every experiment below `assets/`, with the real models."""

import os
import sys
import warnings
from pathlib import Path

import dagster as dg
from dagster import BetaWarning, PreviewWarning

from topr_pipeline.components.models import RealModels

# Dagster warns of its own use of a beta class, once per asset.
for category in (BetaWarning, PreviewWarning):
    warnings.filterwarnings("ignore", category=category, module="dagster")


def project_root() -> Path:
    """The folder that holds `assets/`: the current one or the nearest above it, else this file's.

    Experiments, relative paths in their YAML, `dagster.yaml` and `data/` are found below it.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "assets").is_dir() and (folder / "pyproject.toml").is_file():
            return folder
    return Path(__file__).resolve().parents[1]


ROOT = project_root()
# `assets` is imported by Dagster: this project's, not that of another one on the path.
sys.path.insert(0, str(ROOT))


def data_root() -> Path:
    """Where artifacts lie: `TOPR_DATA`, or `data/` in the project's folder."""
    return Path(os.environ.get("TOPR_DATA") or ROOT / "data").resolve()


def resources() -> dict[str, object]:
    """The resources of every experiment; tests put `topr_pipeline.testing.FakeModels` here."""
    return {"models": RealModels(), "data": str(data_root())}


@dg.definitions
def defs() -> dg.Definitions:
    """All experiments; steps run in one process unless a deployment says otherwise."""
    return dg.Definitions.merge(
        dg.load_from_defs_folder(path_within_project=ROOT),
        dg.Definitions(resources=resources(), executor=dg.in_process_executor),
    )
