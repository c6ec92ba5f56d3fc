"""Reasoning Gym's own scorers (extra `reasoning_gym`); the gold travels with its entry as JSON."""

import json
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


def score(answer: str, gold: str) -> bool:
    """Does the dataset's scorer give the full score of 1? Runs in a worker."""
    from reasoning_gym import get_score_answer_fn  # type: ignore[missing-import]

    entry = json.loads(gold)
    scorer = get_score_answer_fn(entry["metadata"]["source_dataset"])
    return float(scorer(answer, entry)) >= 1.0
