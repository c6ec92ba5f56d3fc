"""Generated word problems with steps to write down: the prompt set that needs no download.

    prompt    Ana has 9 cards , doubles them , loses 6 , finds 4 . How many ?
    solution  9 * 2 = 18 . 18 - 6 = 12 . 12 + 4 = 16 . The answer is 16

Every token is set apart by single spaces and every number is one token, so that a word-level
tokenizer needs about a hundred tokens and a two-layer model learns the form within a minute.
The same problems in plain English, for a real language model:

    prompt    Ana has 9 cards. She doubles them. She loses 6. She finds 4. How many cards does Ana
              have now?
    solution  9 * 2 = 18. 18 - 6 = 12. 12 + 4 = 16. The answer is 16.
"""

import hashlib
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from topr_pipeline.errors import ToprError

Split = Literal["train", "eval"]
Step = tuple[str, int]
"""A verb and its operand; for `doubles`, `triples` and `halves` the operand goes unsaid."""

NAMES = ["Ana", "Ben", "Carl", "Dora", "Emma", "Finn", "Gina", "Hugo", "Ines", "Kira"]
_HE = frozenset({"Ben", "Carl", "Finn", "Hugo"})
THINGS = ["apples", "beads", "books", "cards", "coins", "marbles", "pens", "shells", "stamps"]

_OPERANDS = range(1, 10)
VERBS: dict[str, tuple[str, Sequence[int]]] = {
    **dict.fromkeys(["finds", "buys", "wins", "makes", "collects", "borrows"], ("+", _OPERANDS)),
    **dict.fromkeys(["loses", "sells", "breaks", "drops", "donates", "lends"], ("-", _OPERANDS)),
    "doubles": ("*", (2,)),
    "triples": ("*", (3,)),
    "halves": ("/", (2,)),
}
HARD_VERBS = frozenset({"borrows", "lends", "doubles"})
"""The demonstrations get these wrong more often than right: what training has to mend."""

_COMPUTE: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
}
_MISTAKEN = {"+": "-", "-": "+", "*": "+", "/": "-"}
_STARTS = range(2, 10)
_LARGEST = 20
_LARGEST_SAID = 40
_EVAL_SHARE = 6  # one structure in so many


@dataclass(frozen=True)
class Problem:
    """One problem: its structure is `start` and `steps`; `name` and `thing` are dressing."""

    name: str
    thing: str
    start: int
    steps: tuple[Step, ...]

    @property
    def prompt(self) -> str:
        said = "".join(f" , {_said(step)}" for step in self.steps)
        return f"{self.name} has {self.start} {self.thing}{said} . How many ?"

    @property
    def solution(self) -> str:
        value, said = self.start, ""
        for verb, operand in self.steps:
            sign = VERBS[verb][0]
            result = _COMPUTE[sign](value, operand)
            said += f"{value} {sign} {operand} = {result} . "
            value = result
        return f"{said}The answer is {value}"

    @property
    def english_prompt(self) -> str:
        """The same problem in plain English."""
        pronoun = "He" if self.name in _HE else "She"
        said = "".join(f" {pronoun} {_said(step)}." for step in self.steps)
        asked = f"How many {self.thing} does {self.name} have now?"
        return f"{self.name} has {self.start} {self.thing}.{said} {asked}"

    @property
    def english_solution(self) -> str:
        """The same solution, punctuated as English is."""
        return f"{self.solution.replace(' .', '.')}."

    @property
    def gold(self) -> str:
        return self.solution.rsplit(" ", 1)[1]

    @property
    def split(self) -> Split:
        return split_of(self.start, self.steps)


@dataclass(frozen=True)
class Noise:
    """Probabilities of each mistake in a demonstration; all but `no_answer` are per step."""

    wrong_result: float = 0.10
    wrong_operation: float = 0.10
    wrong_operation_hard: float = 0.65
    dropped_step: float = 0.06
    no_answer: float = 0.20


def problems(
    count: int, split: Split, steps: tuple[int, int], seed: int, key: str = "prompts"
) -> list[Problem]:
    """`count` distinct problems of one split, of `steps` = (fewest, most) steps.

    The number of steps is drawn evenly, then each verb evenly among those that keep the value in
    0..20. With one seed, a larger count begins with the same problems. Raises ToprError, naming
    `<key>.count`, when fewer distinct problems exist.
    """
    _check_enough(count, split, steps, key)
    rng = random.Random(f"{seed} problems {split}")
    found: dict[Problem, None] = {}
    while len(found) < count:
        problem = _draw(rng, steps)
        if problem.split == split:
            found[problem] = None
    return list(found)


def demonstrations(
    count: int, steps: tuple[int, int], seed: int, noise: Noise | None = None
) -> list[tuple[str, str]]:
    """`count` pairs (prompt, completion) of the train split, with mistakes as `noise` says.

    After a mistake the solution goes on from the wrong value, so that its stated answer is the last
    value computed. Numbers are clamped to 0..40, what the vocabulary holds. Problems may repeat.
    """
    noise = noise or Noise()
    rng = random.Random(f"{seed} demonstrations")
    pairs: list[tuple[str, str]] = []
    while len(pairs) < count:
        problem = _draw(rng, steps)
        if problem.split == "train":
            pairs.append((problem.prompt, _noisy_solution(problem, noise, rng)))
    return pairs


def vocabulary() -> list[str]:
    """All words of prompts, solutions and demonstrations, in a fixed order; no special tokens."""
    numbers = [str(number) for number in range(_LARGEST_SAID + 1)]
    words = [".", ",", "?", "=", "has", "them", "How", "many", "The", "answer", "is"]
    return [*numbers, *_COMPUTE, *words, *VERBS, *NAMES, *THINGS]


def split_of(start: int, steps: Sequence[Step]) -> Split:
    """The split of a structure, by a hash of its normalised text without name and object."""
    text = f"has {start} {' '.join(map(_said, steps))} how many"
    digest = hashlib.sha256(text.encode()).digest()
    return "eval" if int.from_bytes(digest[:8], "big") % _EVAL_SHARE == 0 else "train"


def _said(step: Step) -> str:
    verb, operand = step
    return f"{verb} {operand}" if VERBS[verb][0] in "+-" else f"{verb} them"


def _possible(value: int) -> dict[str, list[int]]:
    """The verbs that may follow `value`, with the operands that lead to a whole number in 0..20."""

    def allowed(sign: str, operand: int) -> bool:
        trivial = value == 0 and sign in "*/"
        exact = sign != "/" or value % operand == 0
        return not trivial and exact and 0 <= _COMPUTE[sign](value, operand) <= _LARGEST

    verbs = {
        verb: [operand for operand in operands if allowed(sign, operand)]
        for verb, (sign, operands) in VERBS.items()
    }
    return {verb: operands for verb, operands in verbs.items() if operands}


_POSSIBLE = [_possible(value) for value in range(_LARGEST + 1)]
_POSSIBLE_VERBS = [list(verbs) for verbs in _POSSIBLE]


def _draw(rng: random.Random, steps: tuple[int, int]) -> Problem:
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    start = value = rng.choice(_STARTS)
    drawn: list[Step] = []
    for _ in range(rng.randint(*steps)):
        verb = rng.choice(_POSSIBLE_VERBS[value])
        operand = rng.choice(_POSSIBLE[value][verb])
        drawn.append((verb, operand))
        value = _COMPUTE[VERBS[verb][0]](value, operand)
    return Problem(name, thing, start, tuple(drawn))


def _noisy_solution(problem: Problem, noise: Noise, rng: random.Random) -> str:
    value, said = problem.start, []
    for verb, operand in problem.steps:
        if rng.random() < noise.dropped_step:
            continue
        sign = VERBS[verb][0]
        hard = verb in HARD_VERBS
        if rng.random() < (noise.wrong_operation_hard if hard else noise.wrong_operation):
            sign = _MISTAKEN[sign]
        result = min(max(_COMPUTE[sign](value, operand), 0), _LARGEST_SAID)
        if rng.random() < noise.wrong_result:
            near = range(max(result - 3, 0), min(result + 3, _LARGEST_SAID) + 1)
            result = rng.choice([number for number in near if number != result])
        said.append(f"{value} {sign} {operand} = {result} .")
        value = result
    # A completion with every step dropped keeps its answer: an empty one teaches nothing.
    if not said or rng.random() >= noise.no_answer:
        said.append(f"The answer is {value}")
    return " ".join(said)


def _structures(length: int, value: int) -> Iterator[tuple[Step, ...]]:
    """All step sequences of `length` from `value`."""
    if length == 0:
        yield ()
        return
    for verb, operands in _POSSIBLE[value].items():
        for operand in operands:
            result = _COMPUTE[VERBS[verb][0]](value, operand)
            for rest in _structures(length - 1, result):
                yield ((verb, operand), *rest)


def _check_enough(count: int, split: Split, steps: tuple[int, int], key: str) -> None:
    """Enumerates no further than `count` needs, so that long problems cost nothing."""
    dressings = len(NAMES) * len(THINGS)
    existing = (
        structure
        for length in range(steps[0], steps[1] + 1)
        for start in _STARTS
        for structure in _structures(length, start)
        if split_of(start, structure) == split
    )
    distinct = dressings * sum(1 for _ in islice(existing, -(-count // dressings)))
    if distinct < count:
        raise ToprError(
            f"{count} distinct problems are more than there are ({key}.count: {count}): with "
            f"steps {list(steps)} and split {split} there are {distinct}; lower {key}.count or "
            f"raise the second number of {key}.steps"
        )
