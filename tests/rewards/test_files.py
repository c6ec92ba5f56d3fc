import polars as pl
import pytest

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Rewards
from topr_pipeline.rewards import verify_file

ROWS = pl.DataFrame(
    {
        "id": ["007", "2", "3", "4"],
        "completion": ["The answer is 5", "The answer is 6", "no", None],
        "gold": ["5", "5", "5", "5"],
        "note": ["a,b", 'quote "', "line\nbreak", None],
    }
)
WRITE = {".jsonl": "write_ndjson", ".csv": "write_csv", ".parquet": "write_parquet"}


def read(path):
    if path.suffix == ".csv":
        return pl.read_csv(path, infer_schema=False)
    return pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_ndjson(path)


@pytest.mark.parametrize("suffix", WRITE)
@pytest.mark.parametrize("to", WRITE)
def test_every_input_column_is_kept_and_four_added(tmp_path, suffix, to):
    path, output = tmp_path / f"in{suffix}", tmp_path / f"out{to}"
    getattr(ROWS, WRITE[suffix])(path)
    result = verify_file(path, Rewards(), output=output)
    found = read(output)
    assert found.columns == [*ROWS.columns, "answer", "outcome", "reward", "detail"]
    assert found.select(ROWS.columns).equals(ROWS)
    assert found["outcome"].to_list() == ["correct", "incorrect", "invalid", "invalid"]
    assert [float(r) for r in found["reward"]] == [1.0, -1.0, -1.0, -1.0]
    assert result.output == output
    assert result.summary.counts["invalid"] == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted({path.name, output.name})


def test_default_output_lies_beside_the_input(tmp_path):
    path = tmp_path / "samples.jsonl"
    ROWS.write_ndjson(path)
    assert verify_file(path, Rewards()).output == tmp_path / "samples.verified.jsonl"
    assert read(path).equals(ROWS)


def test_other_columns_numbers_and_finish_reasons(tmp_path):
    path = tmp_path / "in.parquet"
    frame = {"output": ["so", "The answer is 5"], "answer_key": [5, 5]}
    pl.DataFrame(frame | {"finish_reason": ["length", "length"]}).write_parquet(path)
    verify_file(path, Rewards(), completion="output", gold="answer_key")
    found = read(tmp_path / "in.verified.parquet")
    assert found["outcome"].to_list() == ["truncated", "correct"]
    assert found["answer_key"].dtype == pl.Int64


@pytest.mark.parametrize(
    ("frame", "name", "said"),
    [
        ({"gold": ["5"]}, "x.csv", "--completion: .* has no column 'completion'; it has gold"),
        ({"completion": ["5"]}, "x.csv", "--gold: .* has no column 'gold'"),
        (
            {"completion": ["5"], "gold": ["5"], "reward": ["1"], "verified_reward": ["1"]},
            "x.csv",
            "already has .* verified_reward",
        ),
        ({"completion": ["5"], "gold": [["5"]]}, "x.jsonl", "'gold' .* holds List.*wanted is text"),
        ({"completion": ["5"], "gold": ["5"]}, "x.txt", r"ending '.txt' is not one of .jsonl"),
    ],
)
def test_what_cannot_be_graded_is_said(tmp_path, frame, name, said):
    path = tmp_path / name
    frame = pl.DataFrame(frame)
    getattr(frame, WRITE.get(path.suffix, "write_csv"))(path)
    with pytest.raises(ToprError, match=said):
        verify_file(path, Rewards())


@pytest.mark.parametrize("name", ["none.jsonl", "none.csv", "none.parquet"])
def test_a_missing_or_broken_file_is_a_plain_error(tmp_path, name):
    with pytest.raises(ToprError, match=f"{name} cannot be read"):
        verify_file(tmp_path / name, Rewards())
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    with pytest.raises(ToprError, match=r"torn.parquet cannot be read as parquet"):
        verify_file(tmp_path / "torn.parquet", Rewards())


def test_nested_columns_are_kept_but_for_csv(tmp_path):
    path = tmp_path / "in.jsonl"
    ROWS.with_columns(tags=pl.lit(pl.Series([["a", "b"]])).first()).write_ndjson(path)
    verify_file(path, Rewards(), output=tmp_path / "out.parquet")
    assert read(tmp_path / "out.parquet")["tags"].to_list()[0] == ["a", "b"]
    with pytest.raises(ToprError, match=r"CSV cannot hold the nested columns \['tags'\]"):
        verify_file(path, Rewards(), output=tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_an_answer_column_of_the_file_is_kept(tmp_path):
    path = tmp_path / "in.parquet"
    pl.DataFrame({"completion": ["The answer is 5"], "answer": ["#### 5"]}).write_parquet(path)
    verify_file(path, Rewards(), gold="answer")
    found = read(tmp_path / "in.verified.parquet")
    assert found["answer"].to_list() == ["#### 5"]
    assert found.select("verified_answer", "outcome").rows() == [("5", "correct")]


def test_an_output_that_cannot_be_written_is_refused_before_any_grading(tmp_path, monkeypatch):
    path = tmp_path / "in.jsonl"
    ROWS.write_ndjson(path)
    monkeypatch.setattr("topr_pipeline.rewards.grading.grade", None)  # not called
    (tmp_path / "file").touch()
    with pytest.raises(ToprError, match=r"--output .*out.jsonl cannot be written"):
        verify_file(path, Rewards(), output=tmp_path / "file" / "out.jsonl")


def test_what_cannot_be_verified_says_why(tmp_path):
    path = tmp_path / "in.jsonl"
    pl.DataFrame({"completion": ["The answer is 5"], "gold": ["no number"]}).write_ndjson(path)
    verify_file(path, Rewards())
    (row,) = read(tmp_path / "in.verified.jsonl").rows(named=True)
    assert (row["outcome"], row["detail"]) == ("unverifiable", "the gold cannot be read")
