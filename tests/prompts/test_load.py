import json
from pathlib import Path

import polars as pl
import pytest

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Columns, JsonLines, WordProblems
from topr_pipeline.prompts import check_overlap, for_iteration, load_prompts, prompt_id
from topr_pipeline.prompts.jsonl import gold_text
from topr_pipeline.tables import PROMPTS

FILE = "data/set.jsonl"


def write(root: Path, content: bytes | str, name: str = FILE) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content.encode() if isinstance(content, str) else content)


def load(root: Path, content: bytes | str, key: str = "prompts", **spec) -> pl.DataFrame:
    write(root, content)
    return load_prompts(JsonLines(source="jsonl", path=FILE, **spec), root, 0, key)


def lines(*records: dict) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def some(*texts: str) -> str:
    return lines(*({"prompt": text, "gold": 1} for text in texts))


def test_rows_of_a_file_become_prompts_in_its_order(tmp_path):
    content = lines({"q": "One?", "a": 1, "level": 2, "tags": ["x"]}, {"q": "Two?", "a": "two "})
    frame = load(tmp_path, content, columns=Columns(prompt="q", gold="a"))
    assert frame.schema == PROMPTS.schema
    assert frame.rows(named=True) == [
        {
            "prompt_id": prompt_id("One?"),
            "prompt": "One?",
            "gold": "1",
            "source": "data/set.jsonl:1",
            "split": "train",
            "meta": '{"level": 2, "tags": ["x"]}',
        },
        {
            "prompt_id": prompt_id("Two?"),
            "prompt": "Two?",
            "gold": "two",
            "source": "data/set.jsonl:2",
            "split": "train",
            "meta": "{}",
        },
    ]


def test_byte_order_mark_crlf_and_blank_lines_are_read_past(tmp_path):
    content = (
        b'\xef\xbb\xbf{"prompt": "One", "gold": 1}\r\n\r\n  \n{"prompt": "Tw\xc3\xb6", "gold": 2}'
    )
    frame = load(tmp_path, content, "eval_prompts")
    assert frame["prompt"].to_list() == ["One", "Twö"]
    assert frame["source"].to_list() == ["data/set.jsonl:1", "data/set.jsonl:4"]
    assert frame["split"].to_list() == ["eval", "eval"]


def test_line_separators_of_unicode_do_not_end_a_line(tmp_path):
    frame = load(tmp_path, '{"prompt": "One\u2028two", "gold": "\u0085x"}\n')
    assert frame.select("prompt", "gold").row(0) == ("One\u2028two", "x")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("18", "18"),
        (" #### 18\n", "#### 18"),
        ("007", "007"),
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
        (True, None),
        (False, None),
        (None, None),
        ("", None),
        ("  ", None),
        ([18], None),
        ({"x": 1}, None),
    ],
)
def test_gold_text(value, text):
    assert gold_text(value) == text


GOOD = '{"prompt": "Good?", "gold": 1}\n'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("not json", r"set.jsonl:2 \(prompts.path\): not JSON: .* column 1"),
        ('{"prompt": "a", "gold": 1} {}', r"set.jsonl:2 .*not JSON: Extra data"),
        ('{"prompt": "a", "gold": NaN}', r"set.jsonl:2 .*NaN is no number"),
        ('{"prompt": "a", "gold": 1e999}', r"set.jsonl:2 .*1e999 is too large"),
        ("[" * 100_000, r"set.jsonl:2 .*not JSON"),
        ("9" * 5000, r"set.jsonl:2 .*not JSON"),
        ('["a", 1]', r'set.jsonl:2 .*holds \["a", 1\]; give one JSON object'),
        ("null", r"set.jsonl:2 .*holds null"),
        (b'{"prompt": "\xff", "gold": 1}', r"set.jsonl:2 .*byte 0xff is not UTF-8"),
        (r'{"prompt": "\ud800", "gold": 1}', r"set.jsonl:2 .*surrogate"),
        (
            '{"promt": "a", "gold": 1}',
            r"set.jsonl:2: no column 'prompt' \(prompts.columns.prompt\); the row has promt, gold; "
            r"did you mean 'promt'\?",
        ),
        ("{}", r"set.jsonl:2: no column 'prompt' .*has none"),
        (
            '{"prompt": "a", "goal": 1}',
            r"set.jsonl:2: no column 'gold' \(prompts.columns.gold\); .*did you mean 'goal'\?",
        ),
        ('{"prompt": null, "gold": 1}', r"set.jsonl:2: the prompt is null \(prompts.columns.pro"),
        ('{"prompt": " ", "gold": 1}', r'set.jsonl:2: the prompt is " "'),
        ('{"prompt": 7, "gold": 1}', r"set.jsonl:2: the prompt is 7"),
        ('{"prompt": "a", "gold": null}', r"set.jsonl:2: the gold is null \(prompts.columns.gold"),
        ('{"prompt": "a", "gold": true}', r"set.jsonl:2: the gold is true"),
        ('{"prompt": "a", "gold": [1]}', r"set.jsonl:2: the gold is \[1\]"),
        ('{"prompt": "a", "gold": ""}', r'set.jsonl:2: the gold is ""'),
        ('{"prompt": "good", "gold": 2}', r"set.jsonl:1 and data/set.jsonl:2 .*'1' and '2'"),
    ],
)
def test_bad_rows_are_named_with_file_row_and_key(tmp_path, line, said):
    raw = line.encode() if isinstance(line, str) else line
    with pytest.raises(ToprError, match=said):
        load(tmp_path, GOOD.encode() + raw + b"\n")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("data/sat.jsonl", r"'data/sat.jsonl' is not there \(prompts.path\).*mean 'set.jsonl'\?"),
        ("nowhere/set.jsonl", r"'nowhere/set.jsonl' is not there"),
        ("data/set.jsonl/x", r"'data/set.jsonl/x' is not there"),
        ("data", r"'data' is a folder \(prompts.path\)"),
        ("data/empty.jsonl", r"'data/empty.jsonl' holds no prompt \(prompts.path\)"),
        ("data/blank.jsonl", r"'data/blank.jsonl' holds no prompt"),
    ],
)
def test_bad_files_are_named_with_the_key(tmp_path, path, said):
    write(tmp_path, GOOD)
    write(tmp_path, "", "data/empty.jsonl")
    write(tmp_path, b"\xef\xbb\xbf\r\n \n", "data/blank.jsonl")
    with pytest.raises(ToprError, match=said):
        load_prompts(JsonLines(source="jsonl", path=path), tmp_path, 0, "prompts")


def test_unreadable_file_is_named_with_the_key(tmp_path, monkeypatch):
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ToprError, match=r"Permission denied \(eval_prompts.path\)"):
        load(tmp_path, GOOD, "eval_prompts")


def test_errors_name_the_section(tmp_path):
    with pytest.raises(ToprError, match=r"\(eval_prompts\.columns\.gold\)"):
        load(tmp_path, '{"prompt": "a"}', "eval_prompts")


def test_repeated_prompts_keep_the_first_and_limit_counts_what_is_left(tmp_path):
    content = some("One?", "one", "Two", "ONE !", "Three", "Four")
    assert load(tmp_path, content, limit=3)["prompt"].to_list() == ["One?", "Two", "Three"]
    assert load(tmp_path, content, limit=99).height == 4


def test_golds_of_repeated_prompts_are_compared_as_text(tmp_path):
    content = lines({"prompt": "One", "gold": 1e3}, {"prompt": "one", "gold": "1000"})
    assert load(tmp_path, content)["gold"].to_list() == ["1000"]


def test_word_problems_become_prompts(tmp_path):
    spec = WordProblems(source="word_problems", count=50, split="eval", steps=(2, 2))
    frame = load_prompts(spec, tmp_path, 3, "eval_prompts")
    assert frame.schema == PROMPTS.schema
    assert frame.height == 50
    assert set(frame["source"]) == {"word_problems"}
    assert set(frame["split"]) == {"eval"}
    meta = json.loads(frame["meta"][0])
    assert meta["steps"] == 2
    assert meta["solution"].endswith(f"The answer is {frame['gold'][0]}")
    assert frame.equals(load_prompts(spec, tmp_path, 3, "eval_prompts"))
    assert not frame.equals(load_prompts(spec, tmp_path, 4, "eval_prompts"))


def test_too_many_word_problems_name_the_key(tmp_path):
    spec = WordProblems(source="word_problems", count=10**6, split="eval", steps=(1, 1))
    with pytest.raises(ToprError, match=r"eval_prompts\.count: 1000000"):
        load_prompts(spec, tmp_path, 0, "eval_prompts")


def test_prompts_apart_pass_the_overlap_check(tmp_path):
    train = load(tmp_path, some("One", "Two"))
    check_overlap(train, load(tmp_path, some("Three"), "eval_prompts"))


def test_overlap_is_found_by_normalised_text_and_both_sources_named(tmp_path):
    train = load(tmp_path, some("One", "Two", "Three", "Four", "Five"))
    other = load(tmp_path, some("Zero", "five!", "FOUR", "Three", "two ?"), "eval_prompts")
    with pytest.raises(ToprError, match="4 of 5 eval_prompts are also in prompts") as error:
        check_overlap(train, other)
    assert '"five!": prompts data/set.jsonl:5, eval_prompts data/set.jsonl:2' in str(error.value)
    assert '"two ?"' not in str(error.value)
    assert "take them out" in str(error.value)


@pytest.fixture
def seven(tmp_path) -> pl.DataFrame:
    return load(tmp_path, some("a", "b", "c", "d", "e", "f", "g"))


def drawn(frame: pl.DataFrame, m: int | None, k: int, seed: int = 0) -> list[str]:
    return for_iteration(frame, m, k, seed)["prompt"].to_list()


def test_every_prompt_is_used_once_before_any_is_used_twice(seven):
    windows = [drawn(seven, 3, k) for k in range(1, 8)]
    dealt = [prompt for window in windows for prompt in window]
    assert sorted(dealt[:7]) == list("abcdefg")
    assert dealt == dealt[:7] * 3
    assert all(len(set(window)) == 3 for window in windows)


@pytest.mark.parametrize("per_iteration", [None, 7, 8, 1000])
def test_all_prompts_are_used_when_there_are_not_more(seven, per_iteration):
    for k in (1, 2):
        assert sorted(drawn(seven, per_iteration, k)) == list("abcdefg")


@pytest.mark.parametrize("per_iteration", [None, 3])
def test_order_depends_on_the_seed_and_not_on_the_rows(seven, per_iteration):
    first = drawn(seven, per_iteration, 2)
    assert drawn(seven.reverse(), per_iteration, 2) == first
    assert any(drawn(seven, per_iteration, 2, seed) != first for seed in range(1, 5))
    assert for_iteration(seven, per_iteration, 2, 0).schema == PROMPTS.schema


def test_iterations_count_from_one(seven):
    with pytest.raises(ValueError, match="from 1"):
        for_iteration(seven, 3, 0, 0)
