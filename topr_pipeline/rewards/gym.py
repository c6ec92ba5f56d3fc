"""Reasoning Gym's own scorers (extra `reasoning_gym`); the gold travels with its entry as JSON."""

import json
from functools import lru_cache
from typing import Any

VERSION = "1"


def gold(text: str) -> str | None:
    """An entry as JSON: {"answer": ..., "metadata": {"source_dataset": ...}}; None: none."""
    try:
        entry = json.loads(text)
    except ValueError:
        return None
    known = isinstance(entry, dict) and "source_dataset" in (entry.get("metadata") or {})
    return text if known else None


def entry(gold: str, meta: str | None) -> str:
    """The entry of a prompt, from its gold and the JSON of its `meta` column."""
    try:
        found = json.loads(meta or "{}")
    except ValueError:
        found = {}
    metadata: dict[str, Any] = found.get("metadata", found) if isinstance(found, dict) else {}
    return json.dumps({"answer": gold, "metadata": metadata}, sort_keys=True)


def score(answer: str, gold: str) -> bool | str:
    """Does the dataset's scorer give the full score of 1? Runs in a worker.

    `unverifiable` for an entry whose own answer does not get it; an answer that makes the scorer
    raise, where the entry's own does not, is wrong.
    """
    entry = _entry(gold)
    if entry is None:
        return "unverifiable"
    try:
        return _full(answer, entry)
    except (ValueError, TypeError, LookupError, AttributeError, SyntaxError):
        return False


@lru_cache(maxsize=256)
def _entry(gold: str) -> dict[str, Any] | None:
    """The entry whose own answer, if it has one, gets the full score: with lists, or as tuples.

    JSON has no tuples, and some scorers compare the answer with one.
    """
    entry = json.loads(gold)
    for form in (entry, entry | {"metadata": _tupled(entry["metadata"])}):
        if form["answer"] is None or _full(form["answer"], form):
            return form
    return None


def _full(answer: str, entry: dict[str, Any]) -> bool:
    scorer = _gym().get_score_answer_fn(entry["metadata"]["source_dataset"])
    return float(scorer(answer, entry)) >= 1.0


def _tupled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tupled(item) for key, item in value.items()}
    return tuple(map(_tupled, value)) if isinstance(value, list) else value


def _gym() -> Any:
    import reasoning_gym  # type: ignore[missing-import]

    return reasoning_gym


score.prepare = _gym  # type: ignore[attr-defined]
