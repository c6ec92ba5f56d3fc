import json
from pathlib import Path

import polars as pl
import pytest

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Columns, FilePrompts, WordProblems
from topr_pipeline.prompts import apart, for_iteration, load_prompts, prompt_id
from topr_pipeline.tables import PROMPTS

FILE = "data/set.jsonl"


def write(root: Path, content: bytes | str, name: str = FILE) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content.encode() if isinstance(content, str) else content)


def load(root: Path, content: bytes | str, key: str = "prompts", **spec) -> pl.DataFrame:
    write(root, content)
    return load_prompts(FilePrompts(source="files", path=FILE, **spec), root, 0, key)


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
        (
            '{"prompt": "good", "gold": 2}',
            r"set.jsonl:1 and data/set.jsonl:2 .*'1' and '2'.*or give prompts.doubtful: drop",
        ),
    ],
)
def test_bad_rows_are_named_with_file_row_and_key(tmp_path, line, said):
    raw = line.encode() if isinstance(line, str) else line
    with pytest.raises(ToprError, match=said):
        load(tmp_path, GOOD.encode() + raw + b"\n")


def test_a_file_without_a_prompt_is_named_with_the_key(tmp_path):
    for content in ("", b"\xef\xbb\xbf\r\n \n"):
        with pytest.raises(ToprError, match=r"'data/set.jsonl' holds no prompt \(prompts.path\)"):
            load(tmp_path, content)


def test_unreadable_file_is_named_with_the_key(tmp_path, monkeypatch):
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ToprError, match=r"\(eval_prompts.path\) cannot be read: Permission denied"):
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


def test_a_prompt_with_two_golds_is_dropped_altogether_where_the_yaml_says_so(tmp_path):
    content = lines(
        {"prompt": "One", "gold": 1},
        {"prompt": "Two", "gold": 2},
        {"prompt": "one", "gold": 7},
        {"prompt": "One!", "gold": 1},
    )
    assert load(tmp_path, content, doubtful="drop")["prompt"].to_list() == ["Two"]


GSM8K = "Ana sold 48/2 = <<48/2=24>>24 clips.\n#### 1,024 "


def test_the_answer_of_a_gsm8k_solution_is_what_follows_the_hashes(tmp_path):
    columns = Columns(prompt="question", gold="answer", gold_format="gsm8k")
    frame = load(tmp_path, lines({"question": "Q?", "answer": GSM8K}), columns=columns)
    assert frame["gold"].to_list() == ["1,024"]
    assert json.loads(frame["meta"][0]) == {"answer": GSM8K}


@pytest.mark.parametrize("gold", ["no marker 18", "18 ####", "18 #### \n", 18])
def test_a_gsm8k_solution_without_an_answer_is_named_with_row_and_key(tmp_path, gold):
    columns = Columns(gold_format="gsm8k")
    with pytest.raises(ToprError, match=r"set.jsonl:2: the gold .*\(prompts.columns.gold_format"):
        load(
            tmp_path,
            lines({"prompt": "a", "gold": "#### 1"}, {"prompt": "b", "gold": gold}),
            columns=columns,
        )


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


def test_word_problems_in_plain_english_are_the_same_problems(tmp_path):
    spec = WordProblems(source="word_problems", count=30)
    words = load_prompts(spec, tmp_path, 3, "eval_prompts")
    english = load_prompts(
        spec.model_copy(update={"style": "english"}), tmp_path, 3, "eval_prompts"
    )
    assert english["gold"].equals(words["gold"])
    assert english["split"].equals(words["split"])
    assert all(" now?" in prompt for prompt in english["prompt"])
    assert all(
        json.loads(m)["solution"].endswith(f"{g}.") for m, g in english["meta", "gold"].rows()
    )


REFUSE, DROP = (FilePrompts(source="files", path=FILE, doubtful=d) for d in ("refuse", "drop"))


def test_prompts_apart_pass_the_overlap_check(tmp_path):
    train = load(tmp_path, some("One", "Two"))
    assert apart(train, load(tmp_path, some("Three"), "eval_prompts"), REFUSE).equals(train)


def test_overlap_is_found_by_normalised_text_and_both_sources_named(tmp_path):
    train = load(tmp_path, some("One", "Two", "Three", "Four", "Five"))
    other = load(tmp_path, some("Zero", "five!", "FOUR", "Three", "two ?"), "eval_prompts")
    with pytest.raises(ToprError, match="4 of 5 eval_prompts are also in prompts") as error:
        apart(train, other, REFUSE)
    assert '"five!": prompts data/set.jsonl:5, eval_prompts data/set.jsonl:2' in str(error.value)
    assert '"two ?"' not in str(error.value)
    assert "prompts.doubtful: drop" in str(error.value)


def test_overlapping_training_prompts_are_dropped_where_the_yaml_says_so(tmp_path, caplog):
    train = load(tmp_path, some("One", "Two", "Three"))
    other = load(tmp_path, some("two!"), "eval_prompts")
    assert apart(train, other, DROP)["prompt"].to_list() == ["One", "Three"]
    assert "1 of 1 eval_prompts are also in prompts" in caplog.text
    with pytest.raises(ToprError, match="none would be left"):
        apart(train[:0].vstack(train[1:2]), other, DROP)


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
