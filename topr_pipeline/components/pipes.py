"""Dagster's side of a job's messages: log lines become the step's, progress and result come back.

`PipesSubprocessClient` would start the process itself, and then neither its stderr nor the signal
that killed it could be told; so this is the session alone, and `checkpoints.launcher` starts it.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dagster as dg

Context = dg.OpExecutionContext | dg.AssetExecutionContext


@dataclass(frozen=True)
class _Session:
    pipes: dg.PipesSession

    @property
    def env(self) -> Mapping[str, str]:
        return self.pipes.get_bootstrap_env_vars()

    def messages(self) -> Sequence[Mapping[str, Any]]:
        return self.pipes.get_custom_messages()


@dataclass(frozen=True)
class PipesChannel:
    """A channel of `checkpoints.launcher` that is a Dagster Pipes session of the running step."""

    context: Context

    @contextmanager
    def open(self) -> Generator[_Session]:
        """A session that lasts as long as the block."""
        with dg.open_pipes_session(
            context=self.context,
            context_injector=dg.PipesTempFileContextInjector(),
            message_reader=dg.PipesTempFileMessageReader(),
        ) as session:
            yield _Session(session)
