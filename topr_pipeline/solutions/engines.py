"""Engines by name."""

import importlib

from topr_pipeline.errors import ToprError
from topr_pipeline.solutions.engine import Engine

METHODS = ("start", "generate", "close")


def make_engine(name: str) -> Engine:
    """The engine of `sampling.engine`, not yet started.

    `name` is `transformers`, `vllm`, `server`, `fake`, or `python: package.module:factory`, where
    the factory is called without arguments. Raises ToprError when it is none of these, is not
    installed, does not import, or makes something that is no engine.
    """
    if name == "transformers":
        from topr_pipeline.solutions.transformers_engine import TransformersEngine

        return TransformersEngine()
    if name == "vllm":
        from topr_pipeline.solutions.vllm_engine import VllmEngine

        return VllmEngine()
    if name == "server":
        from topr_pipeline.solutions.server_engine import ServerEngine

        return ServerEngine()
    if name == "fake":
        from topr_pipeline.testing import FakeEngine

        return FakeEngine()
    if name.startswith("python:"):
        return _made_by(name)
    raise ToprError(
        f"unknown engine {name!r}; sampling.engine; "
        "accepted: transformers, vllm, server, fake, 'python: package.module:factory'"
    )


def check_engine(name: str) -> None:
    """Raise ToprError where `make_engine` would, before anything else is made; torch stays out."""
    if name == "vllm" or name.startswith("python:"):
        make_engine(name)


def _made_by(name: str) -> Engine:
    module, _, factory = name.removeprefix("python:").strip().partition(":")
    try:
        make = getattr(importlib.import_module(module), factory)
    except (ImportError, AttributeError, ValueError) as error:
        raise ToprError(
            f"{name!r} cannot be imported ({error}); sampling.engine; "
            "accepted: 'python: package.module:factory', importable where the run executes"
        ) from error
    engine = make()
    lacking = [m for m in METHODS if not callable(getattr(engine, m, None))]
    if lacking:
        raise ToprError(
            f"{name!r} made a {type(engine).__name__} without {', '.join(lacking)}; "
            f"sampling.engine; an engine has the methods {', '.join(METHODS)}"
        )
    return engine
