"""What may stand under `sampling.server`, and what is shown of it when it is refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from topr_pipeline.experiment import Sampling, fingerprint

KEY = "sk-canary-7f3a91"


def test_where_the_servers_are_does_not_change_the_fingerprint():
    def sampling(**server: Any) -> Sampling:
        return Sampling.model_validate({"engine": "server", "server": {"urls": URLS[:1], **server}})

    plain = fingerprint(sampling())
    assert fingerprint(sampling(urls=URLS, concurrency=2, api_key_env="OTHER")) == plain


URLS = ["http://127.0.0.1:8000/v1", "http://127.0.0.1:8001/v1"]


@pytest.mark.parametrize(
    ("server", "error"),
    [
        (None, "engine: server wants server"),
        ({"urls": []}, "at least 1 item"),
        ({"urls": ["127.0.0.1:8000"]}, "a base URL such as"),
        ({"urls": ["http://me:secret@127.0.0.1:8000/v1"]}, "no credentials in a URL"),
        ({"urls": ["http://127.0.0.1:99999/v1"]}, "Port out of range"),
        ({"urls": ["http://127.0.0.1:8000/v1"], "api_key_env": "sk-1"}, "should match pattern"),
        ({"urls": ["http://127.0.0.1:8000/v1"], "api_key": "sk"}, "unknown key 'api_key'"),
    ],
)
def test_a_section_that_cannot_work_is_refused(server: Any, error: str):
    with pytest.raises(ValueError, match=error):
        Sampling.model_validate({"engine": "server", "server": server})


@pytest.mark.parametrize(
    "server",
    [
        {"urls": [f"http://me:{KEY}@127.0.0.1/v1"]},
        {"urls": URLS, "api_key_env": KEY},
        {"urls": URLS, "api_key": KEY},
    ],
    ids=["in a URL", "instead of its variable", "under a key of its own"],
)
def test_a_secret_in_the_wrong_place_is_refused_and_not_shown(server: Any):
    with pytest.raises(ValidationError) as raised:
        Sampling.model_validate({"engine": "server", "server": server})
    assert KEY not in str(raised.value) + str(raised.value.errors())
