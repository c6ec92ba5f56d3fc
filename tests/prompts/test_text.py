import pytest
from hypothesis import given
from hypothesis import strategies as st

from topr_pipeline.prompts import normalise, prompt_id


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ana has 9 cards .", "ana has 9 cards"),
        ("ANA  has\t9\ncards", "ana has 9 cards"),
        ("Ana, has: 9; cards?!", "ana has 9 cards"),
        ("“Ana” has ‘9’ cards…", "ana has 9 cards"),  # noqa: RUF001
        ("Ana's cards", "anas cards"),
        ("a well-known, well - known fact", "a well known well known fact"),
        ("Stra\u00dfe \ufb01ne", "strasse fine"),
        ("\uff11\uff12 cards", "12 cards"),
        ("e\u0301te\u0301 = \u00e9t\u00e9", "\u00e9t\u00e9 = \u00e9t\u00e9"),
        ("हिन्दी में ।", "हिन्दी में"),
        ("3.5 or .5 or 3.", "3.5 or .5 or 3"),
        ("no.5", "no 5"),
        ("-5 and 3-4 and 3 \u2212 4", "- 5 and 3 - 4 and 3 - 4"),
        ("1,000,000 and 1,2", "1000000 and 1 2"),
        ("(3+4)\u00d72", "( 3 + 4 ) * 2"),
        ("5! Great!", "5 ! great"),
        ("2\u00b2 and 2\u00bd", "2 ^ 2 and 2 1 / 2"),
        ("50% of $5", "50 % of $ 5"),
        (" ?! ", ""),
    ],
)
def test_normalise(text, expected):
    assert normalise(text) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is 3 + 4?", "What is 3 - 4?"),
        ("What is 3 * 4?", "What is 3 / 4?"),
        ("What is 3.5?", "What is 35?"),
        ("What is 1,2?", "What is 12?"),
        ("What is -5?", "What is 5?"),
        ("What is 2\u00b2?", "What is 22?"),
        ("What is 2\u00bd?", "What is 21/2?"),
        ("What is 5!?", "What is 5?"),
        ("What is x - y?", "What is xy?"),
        ("What is (3 + 4) * 2?", "What is 3 + 4 * 2?"),
        ("?", "..."),
    ],
)
def test_problems_with_other_meanings_have_other_ids(one, other):
    assert prompt_id(one) != prompt_id(other)


WORDS = st.sampled_from(["ana", "7", "3.5", "cards"])
MARKS = st.sampled_from([" ", ", ", " , ", ". ", " .\n", "?! ", "; ", "\u2026\t"])


@given(st.lists(st.tuples(WORDS, MARKS)))
def test_case_punctuation_and_white_space_have_no_say(said):
    text = "".join(word.upper() + mark for word, mark in said)
    assert normalise(text) == " ".join(word for word, _ in said)


def test_prompt_id_is_the_same_on_every_machine():
    assert prompt_id("Ana has 9 cards.") == prompt_id("ana HAS 9 cards") == "586672b44a393110"
