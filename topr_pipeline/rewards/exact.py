"""Text that has to be the same: the stated answer, or else the whole completion."""

import re
import unicodedata

from topr_pipeline.rewards import statements
from topr_pipeline.rewards.statements import Statement

VERSION = "1"

_STATED = re.compile(
    r"\banswer\s{1,3}is\b[ \t:*]*([^\n]{1,500})|####[ \t]*([^\n]{1,500})", re.IGNORECASE
)


def extract(completion: str) -> str | None:
    """The last `<answer>`, box, "The answer is" or `####`; without any, everything. None: blank."""
    text = stated(completion)
    return None if text is None else gold(text)


def stated(completion: str) -> str | None:
    """The text of the last statement, or all of it; None: blank."""
    text = statements.spoken(completion)
    found = [*statements.tagged(text), *statements.boxes(text)]
    found += [
        Statement((m[1] or m[2]).strip(" *`").removesuffix("."), m.start(), m.end())
        for m in _STATED.finditer(text)
    ]
    kept = statements.asked(sorted(found, key=lambda s: s.start), text)
    return (kept[-1].text if kept else text).strip("\n") or None


def gold(text: str) -> str | None:
    """`text` with single spaces, in composed characters (NFC); None if it is blank."""
    return " ".join(unicodedata.normalize("NFC", text).split()) or None


def compare(gold: str, answer: str) -> bool:
    """Is it the same text? The final point of "The answer is U.S." may be the sentence's."""
    return answer in (gold, gold.removesuffix("."))
