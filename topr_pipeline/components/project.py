"""The project as the command line sees it: its experiments and their Dagster definitions."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import yaml
from pydantic import ValidationError

from topr_pipeline.components.files import check_files
from topr_pipeline.components.topr_experiment import TOPRExperiment
from topr_pipeline.definitions import ROOT, data_root, resources
from topr_pipeline.errors import ToprError


@dataclass(frozen=True)
class Project:
    """`root` holds `assets/`, `data` the artifacts."""

    root: Path
    data: Path
    experiments: dict[str, TOPRExperiment]
    definitions: dg.Definitions

    def chosen(self, names: Sequence[str] | None) -> list[TOPRExperiment]:
        """The named experiments; without names the only one there is."""
        known = ", ".join(self.experiments) or "none below assets/"
        if not names and len(self.experiments) != 1:
            raise ToprError(f"which experiment? There are: {known}")
        for name in names or ():
            if name not in self.experiments:
                raise ToprError(f"there is no experiment {name!r}; there are: {known}")
        return [self.experiments[name] for name in dict.fromkeys(names or self.experiments)]


def load_project(root: Path = ROOT, models: object | None = None) -> Project:
    """Load `assets/*/defs.yaml` below `root`; `models` replaces the real ones, in tests.

    Raises ToprError for YAML that cannot be read or is not of the schema: file, line, key, and
    what is accepted.
    """
    check_files(root)
    data = data_root()
    if data.exists() and not data.is_dir():
        raise ToprError(f"TOPR_DATA: {data} is not a folder")
    tree = dg.ComponentTree.for_project(root)
    try:
        found = tree.get_all_components(of_type=TOPRExperiment)
        built = tree.build_defs()
    except Exception as error:
        raise ToprError(explain(error, root)) from error
    given = {**resources(), **({} if models is None else {"models": models})}
    definitions = dg.Definitions.merge(
        built,
        dg.Definitions(
            resources=given, executor=dg.in_process_executor, loggers={"console": TERSE}
        ),
    )
    experiments = {e.name: e for e in sorted(found, key=lambda e: e.name)}
    return Project(root, data, experiments, definitions)


def explain(error: BaseException, root: Path) -> str:
    """The user's part of a loading error, which Dagster wraps: the cause that says most."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    for cause in causes:
        if isinstance(cause, ValidationError):
            return "\n".join(_one_line(dict(e), root) for e in cause.errors())
        if isinstance(cause, yaml.YAMLError | ToprError):
            return str(cause)
    said = f"{type(causes[-1]).__name__}: {str(causes[-1]).strip()}"
    return f"{error}\n{said}\n`dg check defs --verbose` shows where"


def _one_line(detail: dict, root: Path) -> str:
    """`assets/tiny/defs.yaml:12: mix.baseline: ...` of one of pydantic's errors."""
    first, *rest = detail["loc"] or ("attributes",)
    key, _, position = str(first).strip("`").partition(" at ")
    key = ".".join([key, *map(str, rest)])  # what Dagster did not locate comes in parts
    where = position.removeprefix(f"{root}/") or "defs.yaml"
    message = detail["msg"].removeprefix("Value error, ")
    given = detail["input"]
    said = f" (given: {given!r})" if isinstance(given, str | int | float | bool) else ""
    return f"{where}: {key.removeprefix('attributes.')}: {message}{said}"


def _terse(init_context: dg.InitLoggerContext) -> logging.Logger:
    # In a terminal the bars say it.
    logger = logging.Logger("topr", logging.WARNING if sys.stderr.isatty() else logging.INFO)
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine())
    handler.addFilter(_is_ours)
    logger.addHandler(handler)
    return logger


TERSE = dg.LoggerDefinition(_terse, description="What the stages log, without Dagster's events")


def _meta(record: logging.LogRecord) -> dict:
    return getattr(record, "dagster_meta", {})


def _is_ours(record: logging.LogRecord) -> bool:
    """Logged by a step: neither an event nor what Dagster says of steps that it leaves out."""
    meta = _meta(record)
    return not meta.get("dagster_event") and bool(meta.get("step_key"))


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = _meta(record).get("orig_message") or record.getMessage()
        return f"{self.formatTime(record, '%H:%M:%S')} {message}"
