"""Read a JSONL file into (row, record) pairs; every complaint names file, row and YAML key."""

import difflib
import json
import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from topr_pipeline.errors import ToprError

Record = dict[str, Any]


def read_records(path: str, root: Path, key: str) -> Iterator[tuple[int, Record]]:
    """The objects of a JSONL file with their line numbers, from 1; blank lines are passed over.

    UTF-8 with or without a byte order mark, LF or CRLF. Raises ToprError for a file that
    cannot be read, and for a line that is not one JSON object.
    """
    content = _read(path, root, key).removeprefix(b"\xef\xbb\xbf")
    for row, line in enumerate(content.split(b"\n"), 1):
        if line := line.strip():
            yield row, _record(line, f"{path}:{row} ({key}.path)")


def gold_text(value: Any) -> str | None:
    """A gold as text, or None for what is no gold: null, true, blank text, a list, an object.

    >>> [gold_text(v) for v in ("18", 18, 18.0, 1e3, 0.5, True)]
    ['18', '18', '18', '1000', '0.5', None]
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        # The shortest decimal that reads back as this float, without exponent; + 0 turns -0 to 0.
        return format(Decimal(repr(value)).normalize() + 0, "f")
    return None


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest of `known`, or nothing."""
    near = difflib.get_close_matches(wrong, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _read(path: str, root: Path, key: str) -> bytes:
    file = root / path
    if file.is_dir():
        raise ToprError(f"{path!r} is a folder ({key}.path); give the path of one JSONL file")
    if not file.exists():
        beside = [p.name for p in file.parent.iterdir()] if file.parent.is_dir() else []
        raise ToprError(
            f"{path!r} is not there ({key}.path); it is looked for from the project's root "
            f"{root}{did_you_mean(file.name, beside)}"
        )
    try:
        return file.read_bytes()
    except OSError as error:
        raise ToprError(
            f"{path!r} cannot be read: {error.strerror} ({key}.path); give a readable JSONL file"
        ) from error


def _record(line: bytes, where: str) -> Record:
    try:
        text = line.decode()
        record = _DECODER.decode(text)
        if "\\ud" in text.lower():
            json.dumps(record, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise ToprError(
            f"{where}: byte {line[error.start]:#04x} is not UTF-8; save the file as UTF-8"
        ) from error
    except UnicodeEncodeError as error:
        raise ToprError(
            f"{where}: half of a surrogate pair is no text; write the character or both halves"
        ) from error
    except json.JSONDecodeError as error:
        raise ToprError(
            f"{where}: not JSON: {error.msg} at column {error.colno}; give one object a line"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ToprError(f"{where}: not JSON: {error}; give one object a line") from error
    if not isinstance(record, dict):
        raise ToprError(
            f"{where}: the line holds {shown(record)}; give one JSON object a line, {{...}}"
        )
    return record


def shown(value: Any) -> str:
    """A value as JSON, cut to a length that fits a message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text} is too large a number")
    return value


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no number")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)
