from pathlib import Path

import pytest

from topr_pipeline.experiment import Sampling
from topr_pipeline.solutions import Request
from topr_pipeline.testing import FakeEngine

BATCH = [Request("1 + 1 = ?", 3), Request("2 + 1 = ?", 1)]


def started(engine: FakeEngine, max_tokens: int = 8) -> FakeEngine:
    engine.start(Path("nowhere"), Sampling(engine="fake", max_tokens=max_tokens))
    return engine


def test_equal_batches_and_seeds_give_equal_completions():
    first = started(FakeEngine()).generate(BATCH, seed=4)
    assert started(FakeEngine()).generate(BATCH, seed=4) == first
    assert started(FakeEngine()).generate(BATCH, seed=5) != first
    assert started(FakeEngine(seed=1)).generate(BATCH, seed=4) != first


def test_every_token_has_an_id_and_a_negative_logprob_and_eos_is_last():
    (completion, *_), _ = started(FakeEngine(lambda prompt, i: f"a b {i}")).generate(BATCH, seed=0)
    assert (completion.text, completion.finish_reason) == ("a b 0", "stop")
    assert len(completion.logprobs) == len(completion.token_ids) == 4
    assert completion.token_ids[-1] == FakeEngine.EOS
    assert all(0 <= t < 1000 for t in completion.token_ids[:-1])
    assert all(-2 < v < 0 for v in completion.logprobs)
    assert len(completion.prompt_token_ids) == 5


@pytest.mark.parametrize(("words", "reason", "tokens"), [(2, "stop", 3), (3, "length", 3)])
def test_a_reply_without_room_for_eos_is_cut(words: int, reason: str, tokens: int):
    engine = started(FakeEngine(lambda prompt, i: "w " * words), max_tokens=3)
    completion = engine.generate([Request("p", 1)], seed=0)[0][0]
    assert completion.finish_reason == reason
    assert len(completion.token_ids) == tokens
    assert (completion.token_ids[-1] == FakeEngine.EOS) == (reason == "stop")


def test_it_counts_and_fails_when_told():
    engine = started(FakeEngine(fail_after=5))
    engine.generate(BATCH, seed=0)
    with pytest.raises(RuntimeError, match="after 5"):
        engine.generate(BATCH, seed=1)
    engine.close()
    assert (engine.started, engine.generated, engine.closed) == (1, 4, 1)


def test_a_reply_ends_before_the_first_stop_string():
    engine = FakeEngine(reply=lambda prompt, i: "so 2 + 2 = 4 Question: and\nthen")
    sampling = Sampling.model_validate({"engine": "fake", "stop": ["\n", "Question:"]})
    engine.start(Path("policy"), sampling)
    ((said,),) = engine.generate([Request("2 + 2 = ?", 1)], 0)
    assert said.text == "so 2 + 2 = 4 "
    assert said.finish_reason == "stop"
    assert len(said.token_ids) == 7 and said.token_ids[-1] != FakeEngine.EOS
