import datetime
import json
from decimal import Decimal

import pytest

from topr_pipeline.prompts.values import after_hashes, as_json, gold_text, shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("18", "18"),
        (" #### 18\n", "#### 18"),
        ("007", "007"),
        ("1e3", "1e3"),
        (18, "18"),
        (-3, "-3"),
        (10**30, "1" + "0" * 30),
        (18.0, "18"),
        (1e3, "1000"),
        (1e23, "1" + "0" * 23),
        (0.5, "0.5"),
        (-0.0, "0"),
        (1e-7, "0.0000001"),
        (0.1 + 0.2, "0.30000000000000004"),
        (Decimal("12.50"), "12.5"),
        (Decimal("1E+3"), "1000"),
        (float("nan"), None),
        (float("inf"), None),
        (Decimal("NaN"), None),
        (True, None),
        (False, None),
        (None, None),
        ("", None),
        ("  ", None),
        (b"18", None),
        ([18], None),
        ({"x": 1}, None),
    ],
)
def test_gold_text(value, text):
    assert gold_text(value) == text


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("9 * 2 = <<9*2=18>>18\n#### 18", "18"),
        ("####18", "18"),
        ("#### 1 #### 2", "2"),
        ("#### -3.5 \r\n", "-3.5"),
        ("18", None),
        ("18 ####", None),
        ("", None),
    ],
)
def test_after_hashes(gold, answer):
    assert after_hashes(gold) == answer


def test_values_that_json_does_not_know_become_text():
    record = {"day": datetime.date(2025, 3, 1), "price": Decimal("1.5"), "name": "Zoë"}
    assert json.loads(as_json(record)) == {"day": "2025-03-01", "price": "1.5", "name": "Zoë"}


def test_long_values_are_cut_in_messages():
    assert len(shown("x" * 1000)) == 60
