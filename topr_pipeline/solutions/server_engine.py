"""Sampling through OpenAI-compatible completions servers; `vllm serve` is the reference.

A request is one prompt with its n samples. Each goes to the server with the fewest in flight; after
a failure that may pass, it is sent again, to whichever is then least busy.
"""

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, TypeVar

import backoff
import httpx
from pydantic import BaseModel, ValidationError

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Sampling, Server, fingerprint
from topr_pipeline.solutions.engine import Completion, Request
from topr_pipeline.solutions.policy_text import PolicyText
from topr_pipeline.solutions.server_answers import Choice, Choices, ServedModels

logger = logging.getLogger(__name__)

LONGEST_WAIT = 60.0
"""Seconds between two tries at most; they begin at one second or less and double, with jitter."""

Said = TypeVar("Said", bound=BaseModel)


class _MayPass(Exception):
    """A failure that another try may not meet: 429, 5xx, a lost connection, a time-out."""


class ServerEngine:
    """Samples through the servers of `sampling.server`, which serve the policy.

    Prompts go out as token ids; token ids and raw log-probs of the sampled tokens are asked for
    explicitly. The API key is read from the environment, goes into the header alone and is taken
    out of whatever a server says before that is shown. Samples are reproducible only with
    `server.seeded`, and as far as the server is.
    """

    client: httpx.Client | None = None

    def start(self, policy: Path, sampling: Sampling) -> None:
        """Ask each server what it serves.

        Raises ToprError when one is not reachable, or serves something else than `policy`; for a
        key that fits into no header.
        """
        if sampling.server is None:
            raise ToprError(
                "no servers; sampling.server; accepted: {urls: [http://127.0.0.1:8000/v1]}"
            )
        self.sampling, self.server = sampling, sampling.server
        self.text = PolicyText(policy, sampling)
        self.key = _key(self.server.api_key_env)
        self.client = _client(self.server, self.key)
        self.busy, self.lock = Counter[str](dict.fromkeys(self.server.urls, 0)), threading.Lock()
        self.models = {url: self.server.model or self._served(url, policy) for url in self.busy}

    def generate(self, batch: Sequence[Request], seed: int) -> list[list[Completion]]:
        """`n` samples a request, at most `server.concurrency` requests in flight.

        Raises ToprError for a prompt that exceeds the context, before any; for a request that the
        servers refuse, or cannot answer after `server.retries` more tries; for an answer without
        token ids or log-probs. After an error nothing more is sent, and nothing is waited for.
        """
        prompts = [self.text.encoded(r.prompt) for r in batch]

        def answered(i: int) -> tuple[int, list[Completion]]:
            return i, self._sample(prompts[i], batch[i].n, int(fingerprint(seed, i)[:7], 16))

        # Not an executor: Python waits for the threads of one, and so for a server that hangs.
        with ThreadPool(min(self.server.concurrency, len(batch)) or 1) as pool:
            answers = dict(pool.imap_unordered(answered, range(len(batch))))
        return [answers[i] for i in range(len(batch))]

    def close(self) -> None:
        """Close the connections; the servers go on."""
        if self.client is not None:
            self.client.close()
            self.client = None

    def _served(self, url: str, policy: Path) -> str:
        """The name of what the server at `url` serves, if that is the policy's folder."""
        listed = self._retried(lambda: self._sent(ServedModels, url, "GET", "/models")).data
        for model in listed:
            if Path(model.root or model.id).resolve() == policy.resolve():
                return model.id
        names = self._clean(", ".join(m.root or m.id for m in listed)) or "nothing"
        raise ToprError(
            f"{url} serves {names}, not the policy; sampling.server.urls; serve {policy} there "
            f"(`vllm serve {policy}`), or name what stands for it in sampling.server.model"
        )

    def _sample(self, prompt: list[int], n: int, seed: int) -> list[Completion]:
        body = _body(self.sampling, self.text, prompt, n)
        if self.server.seeded:
            body["seed"] = seed

        def once() -> tuple[str, Choices]:
            with self._least_busy() as url:
                said = {**body, "model": self.models[url]}
                return url, self._sent(Choices, url, "POST", "/completions", said)

        url, answer = self._retried(once)
        choices = sorted(answer.choices, key=lambda c: c.index)
        if len(choices) != n:
            raise ToprError(f"{url} returned {len(choices)} samples; sampling.server; {n} wanted")
        return [self._completion(url, prompt, choice) for choice in choices]

    def _completion(self, url: str, prompt: list[int], choice: Choice) -> Completion:
        tokens, logprobs = choice.tokens, choice.token_logprobs
        for what, values in (("token ids", tokens), ("log-probs", logprobs)):
            if not values:
                raise ToprError(
                    f"{url} returned a sample without {what}; sampling.server.urls; a server is "
                    "wanted that knows return_token_ids and logprobs, as `vllm serve` does: "
                    "TOPR trains on the sampled tokens and their probabilities"
                )
        if choice.finish_reason not in ("stop", "length"):
            reason = self._clean(repr(choice.finish_reason))
            raise ToprError(
                f"{url} ended a sample with {reason}; sampling.server.urls; accepted: stop, length"
            )
        assert tokens and logprobs
        if foreign := [t for t in tokens if not 0 <= t < self.text.vocabulary]:
            raise ToprError(
                f"{url} returned token {foreign[0]}, the policy has {self.text.vocabulary}; "
                "sampling.server.urls; a server of this very policy is wanted"
            )
        return self.text.completion(prompt, tokens, logprobs)

    @contextmanager
    def _least_busy(self) -> Generator[str]:
        with self.lock:
            url = min(self.busy, key=self.busy.__getitem__)
            self.busy[url] += 1
        try:
            yield url
        finally:
            with self.lock:
                self.busy[url] -= 1

    def _retried(self, call: Callable[[], Any]) -> Any:
        tries = self.server.retries + 1
        again = backoff.on_exception(
            backoff.expo,
            _MayPass,
            max_tries=tries,
            max_value=LONGEST_WAIT,
            on_backoff=_say_that_it_goes_on,
            logger=None,
        )
        try:
            return again(call)()
        except _MayPass as failure:
            raise ToprError(
                f"{failure}, {tries} times; sampling.server.urls; is the server up? Samples that "
                "are finished are kept: run again to go on"
            ) from None

    def _sent(self, kind: type[Said], url: str, method: str, path: str, body: Any = None) -> Said:
        """The answer, of that kind. _MayPass or ToprError, without the key, for every failure."""
        assert self.client is not None
        try:
            response = self.client.request(method, url + path, json=body)
        except httpx.RequestError as error:
            raise _MayPass(self._clean(f"{url}: {type(error).__name__} {error}")) from None
        said = f"{url} answers {response.status_code}: {self._clean(response.text)[:300]}"
        if response.status_code == HTTPStatus.TOO_MANY_REQUESTS or response.is_server_error:
            raise _MayPass(said)
        if not response.is_success:
            raise ToprError(
                f"{said}; sampling.server; a request that it accepts (on 401 or 403: is the key in "
                f"the environment variable {self.server.api_key_env}? On 404: the URL of vLLM ends "
                "in /v1)"
            )
        try:
            return kind.model_validate_json(response.content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the whole"
            raise ToprError(
                f"{said}; sampling.server.urls; an answer as of OpenAI's API is wanted, in JSON "
                f"({where}: {first['msg']})"
            ) from None

    def _clean(self, text: str) -> str:
        return text.replace(self.key, "***") if self.key else text


def _say_that_it_goes_on(details: Any) -> None:
    logger.warning("%s; trying again in %.1f s", details["exception"], details["wait"])


def _key(variable: str) -> str | None:
    """The key in the environment, without the line's end that a file's content brings along."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ToprError(
            f"the key in the environment variable {variable} holds characters that no header can; "
            "sampling.server.api_key_env; set it to the key alone, on one line"
        )
    return key or None


def _client(server: Server, key: str | None) -> httpx.Client:
    logging.getLogger("httpx").setLevel(logging.WARNING)  # else a line for each request
    return httpx.Client(
        timeout=server.timeout,
        headers={"Authorization": f"Bearer {key}"} if key else {},
        limits=httpx.Limits(max_connections=server.concurrency),
    )


def _body(sampling: Sampling, text: PolicyText, prompt: list[int], n: int) -> dict[str, Any]:
    """A completions request; what OpenAI's own schema lacks are vLLM's extensions."""
    return {
        "prompt": prompt,
        "n": n,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        # a server takes these from the model's generation config where a request says nothing
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop": list(sampling.stop),
        "stop_token_ids": sorted(text.eos),
        "logprobs": 0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
