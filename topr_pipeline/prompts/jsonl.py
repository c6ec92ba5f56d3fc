"""The rows of a JSONL file, strictly: one JSON object a line, finite numbers, whole characters."""

import json
import math
from collections.abc import Iterator

from topr_pipeline.errors import ToprError
from topr_pipeline.prompts.values import Record, shown


def records_of_jsonl(content: bytes, said: str, key: str) -> Iterator[tuple[int, Record]]:
    """The objects with their line numbers, from 1; blank lines are passed over.

    UTF-8 with or without a byte order mark, LF or CRLF. `said` is the file's name and `key` the
    YAML key for messages. Raises ToprError for a line that is not one JSON object.
    """
    for row, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if line := line.strip():
            yield row, _record(line, f"{said}:{row} ({key})")


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


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text} is too large a number")
    return value


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no number")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)
