"""The verifiers by name, and the user's own by dotted path."""

import hashlib
import importlib.util
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

from topr_pipeline.errors import ToprError
from topr_pipeline.rewards import choice, exact, gsm8k, gym, latex, symbolic, verdict


@dataclass(frozen=True)
class Verifier:
    """How an answer is found in a completion, and how it is compared with the gold.

    `extract` and `gold` give answer and gold in the form that is compared, None if there is none;
    `compare(gold, answer)` gives None for what only `judge` can tell, a `module:function` that is
    called as `function(answer, gold)` in a worker process. `whole`: the answer is the completion
    itself, and the function may name another. `clear`: is a gold so plain that an answer is wrong
    which cannot be judged beside it within the limits? `build` and the version are the cache's key.
    """

    name: str
    version: str
    extract: Callable[[str], str | None]
    gold: Callable[[str], str | None]
    compare: Callable[[str, str], bool | None]
    judge: str | None = None
    whole: bool = False
    clear: Callable[[str], bool] | None = None
    build: str = ""

    @property
    def label(self) -> str:
        return f"{self.name}/{self.version}"

    @property
    def key(self) -> str:
        return f"{self.label}+{self.build}" if self.build else self.label


def find(name: str) -> Verifier:
    """The verifier called `name`, or that of `python:module:function`.

    Raises ToprError for an unknown name and for a module that cannot be found.
    """
    if name.startswith("python:"):
        return _own(name.removeprefix("python:").strip())
    if name not in _KNOWN:
        raise ToprError(
            f"rewards.verifier: {name!r} is not known; accepted are {', '.join(_KNOWN)} "
            "and 'python: package.module:function'"
        )
    return _KNOWN[name]()


def batch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a verifier function that takes lists: `f(completions, golds) -> results`, in order."""
    function.batch = True  # type: ignore[attr-defined]
    return function


def _simple(name: str, module: Any) -> Verifier:
    compare = getattr(module, "compare", operator.eq)
    return Verifier(name, module.VERSION, module.extract, module.gold, compare, build=_build())


def _math() -> Verifier:
    version = f"{latex.VERSION}+math-verify-{symbolic.math_verify_version()}"
    judge = "topr_pipeline.rewards.symbolic:equal"
    return Verifier(
        "math",
        version,
        latex.extract,
        latex.gold,
        latex.quickly,
        judge,
        clear=latex.clear,
        build=_build(),
    )


def _reasoning_gym() -> Verifier:
    if importlib.util.find_spec("reasoning_gym") is None:
        raise ToprError(
            "rewards.verifier: reasoning_gym needs the package reasoning-gym; "
            "install it with pip install 'topr_pipeline[reasoning_gym]'"
        )
    judge = "topr_pipeline.rewards.gym:score"
    version = f"{gym.VERSION}+{metadata.version('reasoning-gym')}"
    return Verifier(
        "reasoning_gym", version, exact.stated, gym.gold, _undecided, judge, build=_build()
    )


def _own(path: str) -> Verifier:
    """A user's function gets the whole completion; its version is the hash of its module's file."""
    module, _, function = path.partition(":")
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        raise ToprError(f"rewards.verifier: {module} cannot be found: {error}") from error
    if spec is None or not function:
        raise ToprError(
            f"rewards.verifier: there is no module {module!r} for 'python: {path}'; wanted is "
            "'python: package.module:function' of a module that Python can import"
        )
    source = Path(spec.origin).read_bytes() if spec.origin and Path(spec.origin).exists() else b""
    version = hashlib.sha256(source).hexdigest()[:12]
    return Verifier(path, version, _everything, _everything, _undecided, path, whole=True)


def in_worker(verifier: Verifier) -> Verifier:
    """`verifier` with all of its work, reading included, left to a worker process."""
    return Verifier(
        verifier.name, verifier.version, _everything, partial(_named, verifier.name), _undecided,
        "topr_pipeline.rewards.verifiers:judge_whole", whole=True,
        clear=partial(_clear_named, verifier), build=f"{verifier.build}-whole",
    )  # fmt: skip


def _clear_named(verifier: Verifier, gold: str) -> bool:
    wanted = verifier.gold(gold.partition(":")[2]) if len(gold) < 1000 else None
    return wanted is not None and verifier.clear is not None and verifier.clear(wanted)


def judge_whole(completion: str, gold: str) -> tuple[str, str | None]:
    """Outcome and answer of a completion, in a worker; `gold` is "NAME:GOLD" (`in_worker`)."""
    name, _, gold = gold.partition(":")
    verifier = find(name)
    wanted, answer = verifier.gold(gold), verifier.extract(completion)
    if wanted is None:
        return "unverifiable", answer
    if answer is None:
        return "invalid", None
    equal = verifier.compare(wanted, answer)
    if equal is None and verifier.judge is not None:
        module, _, function = verifier.judge.partition(":")
        equal = getattr(importlib.import_module(module), function)(answer, wanted)
        if isinstance(equal, str):
            return equal, answer
    return "correct" if equal else "incorrect", answer


@lru_cache(maxsize=1)
def _build() -> str:
    """A hash of this package's source and of the libraries whose verdicts it keeps."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    for library in ("math-verify", "sympy", "latex2sympy2_extended", "mpmath"):
        digest.update(metadata.version(library).encode())
    return digest.hexdigest()[:12]


def _named(name: str, gold: str) -> str:
    return f"{name}:{gold}"


def _everything(text: str) -> str | None:
    return text


def _undecided(gold: str, answer: str) -> bool | None:
    return None


_KNOWN: dict[str, Callable[[], Verifier]] = {
    "gsm8k": partial(_simple, "gsm8k", gsm8k),
    "math": _math,
    "exact": partial(_simple, "exact", exact),
    "choice": partial(_simple, "choice", choice),
    "verdict": partial(_simple, "verdict", verdict),
    "reasoning_gym": _reasoning_gym,
}
