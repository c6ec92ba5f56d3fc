"""What can be wrong with the files below `assets/` before Dagster reads them."""

import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import yaml

from topr_pipeline.errors import ToprError


def check_files(root: Path) -> None:
    """Raise ToprError for what Dagster would take silently or answer with a stack trace.

    That is: no experiment at all, a file that is empty, no YAML or not UTF-8, a key that stands
    twice, no `attributes`, a folder's name that cannot be an experiment's, a name used twice.
    """
    module = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["dg"]["project"]
    files = sorted((root / module["defs_module"]).rglob("defs.yaml"))
    if not files:
        raise ToprError(f"there is no experiment below {root}; write assets/<name>/defs.yaml")
    wrong = [said for file in files for said in _wrong(file, str(file.relative_to(root)))]
    for name, count in Counter(file.parent.name for file in files).items():
        if count > 1:
            where = ", ".join(str(f.relative_to(root)) for f in files if f.parent.name == name)
            wrong.append(f"{where}: an experiment is named after its folder; {name} stands twice")
    if wrong:
        raise ToprError("\n".join(wrong))


def _wrong(file: Path, said: str) -> Iterator[str]:
    name = file.parent.name
    if not (name.isascii() and name.isidentifier()):
        yield f"{said}: the folder's name {name!r}: letters, digits and _ are accepted"
    try:
        documents = list(yaml.compose_all(file.read_text(encoding="utf-8")))
    except UnicodeDecodeError as error:
        yield f"{said}: not UTF-8 ({error.reason} at byte {error.start})"
        return
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        yield f"{said}{line}: not YAML: {getattr(error, 'problem', error)}"
        return
    if not documents:
        yield f"{said}: is empty; see assets/tiny/defs.yaml"
        return
    if len(documents) > 1:
        yield f"{said}: {len(documents)} documents; one experiment in one file is accepted"
        return
    (document,) = documents
    keys = {k.value for k, _ in document.value} if isinstance(document, yaml.MappingNode) else set()
    if missing := {"type", "attributes"} - keys:
        yield f"{said}: no key {' and '.join(sorted(missing))}; see assets/tiny/defs.yaml"
    yield from _repeated(document, said)


def _repeated(node: yaml.Node, said: str) -> Iterator[str]:
    """Keys that stand twice in one mapping: YAML readers keep the last one and say nothing."""
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                yield f"{said}:{key.start_mark.line + 1}: the key {key.value!r} stands twice"
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
            yield from _repeated(value, said)
    if isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _repeated(value, said)
