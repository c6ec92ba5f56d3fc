"""What a stage found out about its own output, before anyone decides what to do about it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One finding: `passed`, a sentence for the user, and the figures behind it."""

    name: str
    passed: bool
    message: str
    figures: Mapping[str, float]
