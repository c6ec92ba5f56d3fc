import importlib.util

import pytest

from topr_pipeline.errors import ToprError
from topr_pipeline.solutions import check_engine, make_engine
from topr_pipeline.solutions.server_engine import ServerEngine
from topr_pipeline.solutions.transformers_engine import TransformersEngine
from topr_pipeline.testing import FakeEngine


def test_engines_are_made_by_name():
    assert isinstance(make_engine("transformers"), TransformersEngine)
    assert isinstance(make_engine("server"), ServerEngine)
    assert isinstance(make_engine("fake"), FakeEngine)
    assert isinstance(make_engine("python: topr_pipeline.testing:FakeEngine"), FakeEngine)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vlm", "unknown engine 'vlm'; sampling.engine; accepted: transformers"),
        ("python:no_such_module:make", "No module named 'no_such_module'"),
        ("python:topr_pipeline.testing:NoSuchEngine", "NoSuchEngine"),
        ("python:collections:Counter", "made a Counter without start, generate, close"),
    ],
)
def test_what_is_no_engine_is_refused_naming_the_key(name: str, said: str):
    with pytest.raises(ToprError, match=r"sampling\.engine") as error:
        make_engine(name)
    assert said in str(error.value)
    if name.startswith("python:"):
        with pytest.raises(ToprError):
            check_engine(name)


def test_a_missing_vllm_is_reported_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToprError, match="make vllm"):
        make_engine("vllm")
    with pytest.raises(ToprError, match="make vllm"):
        check_engine("vllm")
