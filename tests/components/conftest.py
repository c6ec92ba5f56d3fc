"""A project of its own per test: `assets/<name>/defs.yaml` in a temporary folder."""

import io
import itertools
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from topr_pipeline.report import write

PYPROJECT = """
[tool.dg]
directory_type = "project"
[tool.dg.project]
root_module = "{module}"
defs_module = "{module}"
code_location_target_module = "topr_pipeline.definitions"
registry_modules = ["topr_pipeline.components"]
"""
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plot is drawn: they take most of the time of an experiment with mocked models.

    tests/evals, tests/report and tests/test_end_to_end.py draw them.
    """

    def blank(figure: Figure, stream: io.BytesIO, **options: object) -> None:
        stream.write(b"\x89PNG\r\n\x1a\n")

    monkeypatch.setattr(Figure, "savefig", blank)
    monkeypatch.setattr(write, "draw", lambda found: defaultdict(list))


@pytest.fixture
def write_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """`write_project(toy=yaml, other=yaml)` writes the experiments and returns the project's root.

    The module that Dagster imports has another name in each project: one process imports many.
    """
    module = f"experiments_{next(_numbers)}"

    def write(**experiments: str) -> Path:
        (tmp_path / "pyproject.toml").write_text(PYPROJECT.format(module=module))
        for name, text in experiments.items():
            folder = tmp_path / module / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "defs.yaml").write_text(text)
        return tmp_path

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TOPR_DATA", str(tmp_path / "data"))
    return write
