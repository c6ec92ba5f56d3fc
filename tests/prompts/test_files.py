import json
from pathlib import Path

import polars as pl
import pytest

from topr_pipeline.errors import ToprError
from topr_pipeline.prompts import found_files
from topr_pipeline.prompts.files import read_records


def write(root: Path, **files: str | bytes) -> None:
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def read(root: Path, path: str) -> list[tuple[str, dict]]:
    return list(read_records(path, root, "prompts.path"))


LINE = json.dumps({"prompt": "One", "gold": 1}) + "\n"


def test_csv_rows_come_with_the_line_where_they_begin(tmp_path):
    content = (
        b"\xef\xbb\xbf\r\nprompt, gold\r\n\r\n"
        b'"Two, or\r\nthree?",2\r\n , \r\nF\xc3\xbcnf,"say ""5"""\r\nno end,1e3'
    )
    write(tmp_path, a_csv=content)
    assert read(tmp_path, "a.csv") == [
        ("a.csv:4", {"prompt": "Two, or\r\nthree?", "gold": "2"}),
        ("a.csv:7", {"prompt": "Fünf", "gold": 'say "5"'}),
        ("a.csv:8", {"prompt": "no end", "gold": "1e3"}),
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("prompt,gold\na,1\nb\n", r"a.csv:3 \(prompts.path\): 1 fields where there are 2 columns"),
        ("prompt,gold\na,b,1\n", r"a.csv:2 .*3 fields where there are 2 columns, prompt, gold"),
        ("gold,prompt,gold\n", r"a.csv:1 .*columns of one name: \['gold'\]"),
        (b"prompt,gold\n\xff,1\n", r"a.csv:2 .*byte 0xff is not UTF-8"),
        ('prompt,gold\n"open,1\n', r"a.csv:\d .*not CSV: unexpected end of data"),
        ('prompt,gold\n"a"b,1\n', r"a.csv:2 .*not CSV: ',' expected after"),
    ],
)
def test_bad_csv_is_named_with_file_line_and_key(tmp_path, content, said):
    write(tmp_path, a_csv=content)
    with pytest.raises(ToprError, match=said):
        read(tmp_path, "a.csv")


def test_parquet_rows_are_counted_from_one_and_keep_their_types(tmp_path):
    frame = pl.DataFrame({"prompt": ["One", None], "gold": [1.0, 2.5], "tags": [["x"], []]})
    frame.write_parquet(tmp_path / "a.parquet")
    assert read(tmp_path, "a.parquet") == [
        ("a.parquet:1", {"prompt": "One", "gold": 1.0, "tags": ["x"]}),
        ("a.parquet:2", {"prompt": None, "gold": 2.5, "tags": []}),
    ]


def test_broken_parquet_is_named_with_the_key(tmp_path):
    write(tmp_path, a_parquet="PAR1 no table PAR1")
    with pytest.raises(ToprError, match=r"'a.parquet' \(prompts.path\) cannot be read as Parquet"):
        read(tmp_path, "a.parquet")


FOLDER = {
    "set__2_jsonl": LINE,
    "set__1_csv": "prompt,gold\nOne,1\n",
    "set__deep__3_json": LINE,
    "set__README_md": "no prompts",
    "set___hidden_jsonl": "no prompts",
    "other_jsonl": LINE,
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("set", ["set/1.csv:2", "set/2.jsonl:1", "set/deep/3.json:1"]),
        ("set/*.jsonl", ["set/2.jsonl:1"]),
        ("set/**/*.json*", ["set/2.jsonl:1", "set/deep/3.json:1"]),
        ("*.jsonl", ["other.jsonl:1"]),
        ("set/2.jsonl", ["set/2.jsonl:1"]),
    ],
)
def test_a_folder_or_a_pattern_names_files_in_the_order_of_their_names(tmp_path, path, found):
    write(tmp_path, **FOLDER)
    assert [source for source, _ in read(tmp_path, path)] == found
    assert [source for source, _ in read(tmp_path, str(tmp_path / path))] == found


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path):
    (tmp_path / "a[1].jsonl").write_text(LINE)
    assert [f.name for f in found_files("a[1].jsonl", tmp_path)] == ["a[1].jsonl"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("sat", r"'sat' is not there \(prompts.path\).*did you mean 'set'\?"),
        ("nowhere/a.jsonl", r"'nowhere/a.jsonl' is not there"),
        ("other.jsonl/x", r"'other.jsonl/x' is not there"),
        ("set/*.parquet", r"'set/\*.parquet' names no file \(prompts.path\); give a .jsonl, .csv"),
        ("empty", r"'empty' names no file"),
        ("set/README.md", r"'set/README.md' \(prompts.path\) is of no known kind; give a .jsonl"),
    ],
)
def test_what_names_no_file_is_refused_with_the_key(tmp_path, path, said):
    write(tmp_path, **FOLDER)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ToprError, match=said):
        read(tmp_path, path)
