"""The server engine against a small completions server in this process, on loopback."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, PreTrainedTokenizerFast

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Sampling
from topr_pipeline.solutions import Completion, Request
from topr_pipeline.solutions.server_engine import ServerEngine

EOS, KEY = 2, "sk-canary-7f3a91"
Body = dict[str, Any]


def choice(index: int, tokens: list[int], reason: str = "stop", **changes: Any) -> Body:
    """One sample as `vllm serve` returns it when asked for `return_token_ids`."""
    logprobs = {"token_logprobs": [-t / 10 for t in tokens], "tokens": []}
    said = {"index": index, "token_ids": tokens, "finish_reason": reason, "logprobs": logprobs}
    return {**said, **changes}


def answer(body: Body) -> Body:
    """Sample i of a prompt is its first token plus i, then EOS; choices come in reverse."""
    first = body["prompt"][0]
    return {"choices": [choice(i, [first + i, EOS]) for i in reversed(range(body["n"]))]}


@dataclass
class FakeServer:
    """`reply(body, number of the request)` is (status, JSON or text); None drops the connection."""

    root: str
    reply: Callable[[Body, int], tuple[int, Any] | None] = lambda body, i: (200, answer(body))
    bodies: list[Body] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    at_once: int = 0
    most_at_once: int = 0
    url: str = ""

    def __post_init__(self) -> None:
        self.lock = threading.Lock()


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """Tokenizer and configuration; a server's client reads no weights."""
    folder = tmp_path / "policy"
    ids = {f"w{i}": i for i in range(30) if i != EOS} | {"<eos>": EOS}
    words = Tokenizer(WordLevel(ids, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()  # pyrefly: ignore
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>")
    tokenizer.save_pretrained(folder)
    LlamaConfig(vocab_size=30, max_position_embeddings=64, eos_token_id=EOS).save_pretrained(folder)
    return folder


@pytest.fixture
def serve(policy: Path) -> Iterator[Callable[..., FakeServer]]:
    running: list[ThreadingHTTPServer] = []

    def start(root: str = str(policy), **keys: Any) -> FakeServer:
        fake = FakeServer(root, **keys)
        server = _Quiet(("127.0.0.1", 0), _handler(fake))
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        running.append(server)
        fake.url = f"http://127.0.0.1:{server.server_port}/v1"
        return fake

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that no longer waits for its answer is no error."""


def _handler(fake: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.say(200, {"data": [{"id": "served", "root": fake.root}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with fake.lock:
                fake.bodies.append(body)
                fake.keys.append(self.headers["Authorization"])
                number = len(fake.bodies) - 1
                fake.at_once += 1
                fake.most_at_once = max(fake.most_at_once, fake.at_once)
            said = fake.reply(body, number)
            with fake.lock:
                fake.at_once -= 1
            if said is not None:
                self.say(*said)

        def say(self, status: int, said: Any) -> None:
            text = (said if isinstance(said, str) else json.dumps(said)).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(text)), **fake.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []
    monkeypatch.setattr("backoff._sync.time", SimpleNamespace(sleep=waits.append))
    return waits


def generate(
    policy: Path, servers: list[FakeServer], batch: list[Request], seed: int = 0, **keys: Any
) -> list[list[Completion]]:
    engine = ServerEngine()
    server = {"urls": [s.url for s in servers], **keys}
    said = {"engine": "server", "max_tokens": 8, "top_k": 5, "server": server}
    engine.start(policy, Sampling.model_validate(said))
    try:
        return engine.generate(batch, seed)
    finally:
        engine.close()


BATCH = [Request("w5 w6", 2), Request("w10", 1), Request("w20 w3 w3", 3)]


def test_samples_come_in_order_with_their_tokens_and_logprobs(policy: Path, serve):
    answers = generate(policy, [serve()], BATCH)
    assert [[c.text for c in a] for a in answers] == [["w5", "w6"], ["w10"], ["w20", "w21", "w22"]]
    first = answers[0][1]
    assert first == Completion("w6", [5, 6], [6, EOS], [-0.6, -0.2], "stop")


def test_tokens_and_raw_logprobs_of_an_unchanged_distribution_are_asked_for(policy: Path, serve):
    server = serve()
    generate(policy, [server], BATCH[:1])
    (body,) = server.bodies
    assert body["prompt"] == [5, 6]
    assert body["model"] == "served"
    assert (body["n"], body["max_tokens"], body["top_k"], body["temperature"]) == (2, 8, 5, 1.0)
    assert (body["repetition_penalty"], body["min_p"]) == (1.0, 0.0)
    assert body["return_token_ids"] and body["return_tokens_as_token_ids"]
    assert body["logprobs"] == 0
    assert body["stop_token_ids"] == [EOS]
    assert "seed" not in body


def test_seeds_are_sent_on_demand_and_differ_between_requests_and_calls(policy: Path, serve):
    server = serve()
    for seed in (1, 1, 2):
        generate(policy, [server], BATCH, seed, seeded=True)
    sent = {(i // 3, b["prompt"][0]): b["seed"] for i, b in enumerate(server.bodies)}
    assert all(sent[0, p] == sent[1, p] for p in (5, 10, 20))
    assert len(set(sent.values())) == 6


def test_tokens_written_as_ids_are_read_too(policy: Path, serve):
    logprobs = {"token_logprobs": [-0.5, -0.1], "tokens": ["token_id:7", f"token_id:{EOS}"]}
    said = {"choices": [choice(0, [], token_ids=None, logprobs=logprobs)]}
    ((completion,),) = generate(policy, [serve(reply=lambda b, i: (200, said))], [Request("w5", 1)])
    assert completion.token_ids == [7, EOS]


def test_the_work_is_shared_and_bounded(policy: Path, serve):
    four = threading.Barrier(4)

    def together(body: Body, number: int) -> tuple[int, Any]:
        four.wait(30)
        return 200, answer(body)

    servers = [serve(reply=together) for _ in range(2)]
    answers = generate(policy, servers, [Request("w5", 1)] * 12, concurrency=4)
    assert [len(a) for a in answers] == [1] * 12
    assert [s.most_at_once for s in servers] == [2, 2]


PASSING: list[tuple[int, Any] | None] = [
    (429, "slow down"),
    (500, "out of memory"),
    (503, ""),
    None,
]


@pytest.mark.parametrize("failure", PASSING, ids=["429", "500", "503", "connection dropped"])
def test_a_failure_that_passes_is_tried_again_after_a_growing_wait(
    policy: Path, serve, no_waiting: list[float], failure
):
    server = serve(reply=lambda body, i: failure if i < 3 else (200, answer(body)))
    ((completion,),) = generate(policy, [server], [Request("w5", 1)])
    assert completion.token_ids == [5, EOS]
    assert len(server.bodies) == 4
    assert len(no_waiting) == 3
    assert all(wait <= limit for wait, limit in zip(no_waiting, (1, 2, 4), strict=True))


@pytest.mark.parametrize("failure", PASSING, ids=["429", "500", "503", "connection dropped"])
def test_a_failure_that_stays_is_reported_after_the_retries(policy: Path, serve, failure):
    server = serve(reply=lambda body, i: failure)
    with pytest.raises(ToprError, match=r"3 times; sampling\.server\.urls"):
        generate(policy, [server], [Request("w5", 1)], retries=2)
    assert len(server.bodies) == 3


def test_an_answer_that_takes_too_long_is_asked_for_again(policy: Path, serve):
    release = threading.Event()

    def slow_once(body: Body, number: int) -> tuple[int, Any]:
        if number == 0:
            release.wait(10)
        return 200, answer(body)

    server = serve(reply=slow_once)
    ((completion,),) = generate(policy, [server], [Request("w5", 1)], timeout=0.2)
    release.set()
    assert completion.token_ids == [5, EOS]


WRONG = [
    ({"choices": [choice(0, [5, EOS], logprobs=None)]}, "without log-probs"),
    ({"choices": [choice(0, [5], logprobs={"token_logprobs": [None]})]}, "without log-probs"),
    ({"choices": [choice(0, [], token_ids=None)]}, "without token ids"),
    (
        {"choices": [choice(0, [], logprobs={"token_logprobs": [-1.0], "tokens": ["w5"]})]},
        "without token ids",
    ),
    ({"choices": []}, "returned 0 samples"),
    ({"choices": [choice(0, [5]), choice(1, [5])]}, "returned 2 samples"),
    ({}, "returned 0 samples"),
    ({"choices": [choice(0, [5], "abort")]}, "ended a sample with 'abort'"),
    ("<html>", "in JSON"),
    ("[]", "in JSON"),
    ("null", "in JSON"),
    ({"choices": "abc"}, r"\(choices: "),
    ({"choices": [1]}, r"\(choices\.0: "),
    ({"choices": [choice(0, [5], token_ids=["5"])]}, r"\(choices\.0\.token_ids\.0: "),
    ({"choices": [choice(0, [5], token_ids=[True])]}, r"\(choices\.0\.token_ids\.0: "),
    ({"choices": [choice(0, [5], token_ids=[5.5])]}, r"\(choices\.0\.token_ids\.0: "),
    ({"choices": [choice(0, [5], logprobs=[-0.1])]}, r"\(choices\.0\.logprobs: "),
    ({"choices": [choice(0, [5], logprobs={"token_logprobs": ["a"]})]}, "token_logprobs"),
    ({"choices": [choice(0, [-1])]}, "returned token -1, the policy has 30"),
    ({"choices": [choice(0, [5, 30])]}, "returned token 30, the policy has 30"),
    ({"choices": [choice(0, [2**70])]}, "returned token"),
    (
        {"choices": [choice(0, [], logprobs={"token_logprobs": [-1], "tokens": ["token_id:x"]})]},
        "without token ids",
    ),
]


@pytest.mark.parametrize(("said", "error"), WRONG, ids=str)
def test_an_answer_that_cannot_be_trained_on_is_refused(policy: Path, serve, said, error: str):
    server = serve(reply=lambda body, i: (200, said))
    with pytest.raises(ToprError, match=error) as raised:
        generate(policy, [server], [Request("w5", 1)])
    assert "sampling.server" in str(raised.value)
    assert len(server.bodies) == 1


@pytest.mark.parametrize("hanging", [0, 1], ids=["the first hangs", "a later one hangs"])
def test_an_error_is_said_without_waiting_for_a_request_that_hangs(
    policy: Path, serve, hanging: int
):
    release = threading.Event()

    def reply(body: Body, number: int) -> tuple[int, Any]:
        if body["prompt"] == [5 + hanging]:
            release.wait(30)
        return 400, "no such thing"

    with pytest.raises(ToprError, match="400: no such thing"):
        generate(policy, [serve(reply=reply)], [Request("w5", 1), Request("w6", 1)])
    left = [t for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
    assert not release.is_set()
    assert left == []  # nor does the end of the process
    release.set()


def test_an_answer_that_cannot_be_decoded_is_asked_for_again(policy: Path, serve):
    server = serve(reply=lambda body, i: (200, answer(body)), headers={"Content-Encoding": "gzip"})
    with pytest.raises(ToprError, match=r"DecodingError.*2 times"):
        generate(policy, [server], [Request("w5", 1)], model="mine", retries=1)


def test_a_refused_request_is_not_repeated(policy: Path, serve):
    server = serve(reply=lambda body, i: (400, "maximum context length is 4"))
    with pytest.raises(ToprError, match="400: maximum context length is 4"):
        generate(policy, [server], [Request("w5", 1)])
    assert len(server.bodies) == 1


def test_a_server_of_another_policy_is_refused_unless_its_model_is_named(policy: Path, serve):
    server = serve(root="/somewhere/else")
    with pytest.raises(ToprError, match=r"serves /somewhere/else, not the policy"):
        generate(policy, [server], [Request("w5", 1)])
    generate(policy, [server], [Request("w5", 1)], model="mine")
    assert server.bodies[-1]["model"] == "mine"


def test_a_server_that_is_not_there_is_named(policy: Path, serve):
    server = serve()
    server.url = "http://127.0.0.1:9/v1"
    with pytest.raises(ToprError, match=r"127\.0\.0\.1:9/v1: ConnectError.*is the server up"):
        generate(policy, [server], [Request("w5", 1)], retries=1)


def test_the_key_is_sent_and_stands_in_no_message_log_table_or_fingerprint(
    policy: Path, serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("MY_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    fine = serve()
    answers = generate(policy, [fine], BATCH, api_key_env="MY_KEY")
    assert fine.keys == [f"Bearer {KEY}"] * 3
    said = [repr(answers)]
    for status in (401, 429):
        server = serve(reply=lambda body, i, s=status: (s, f"Incorrect key: {KEY}"))
        with pytest.raises(ToprError, match=r"Incorrect key: \*\*\*") as raised:
            generate(policy, [server], BATCH, api_key_env="MY_KEY", retries=1)
        said.append(repr(raised.getrepr(chain=True)))
    assert not any(KEY in text for text in [*said, caplog.text])


LEAKING = [
    (400, f"{'x' * 293}{KEY}"),  # cut in the middle
    (200, {"choices": [choice(0, [5], KEY)]}),
    (200, {"choices": KEY}),
]


@pytest.mark.parametrize(("status", "said"), LEAKING, ids=["cut", "finish reason", "no choices"])
def test_no_part_of_the_key_is_shown_whatever_a_server_says(
    policy: Path, serve, monkeypatch: pytest.MonkeyPatch, status: int, said: Any
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(ToprError) as raised:
        generate(policy, [serve(reply=lambda body, i: (status, said))], [Request("w5", 1)])
    assert KEY[:5] not in str(raised.value)


@pytest.mark.parametrize("around", ["\n", "\r\n", " "])
def test_a_key_is_sent_without_the_white_space_around_it(
    policy: Path, serve, monkeypatch: pytest.MonkeyPatch, around: str
):
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}{around}")
    server = serve()
    generate(policy, [server], [Request("w5", 1)])
    assert server.keys == [f"Bearer {KEY}"]


@pytest.mark.parametrize("key", [f"{KEY}\nmore", f"{KEY}\u00e9", f"{KEY}\x7f"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(
    policy: Path, serve, monkeypatch: pytest.MonkeyPatch, key: str
):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(ToprError, match=r"OPENAI_API_KEY .*api_key_env") as raised:
        generate(policy, [serve()], [Request("w5", 1)])
    assert KEY not in str(raised.value)
