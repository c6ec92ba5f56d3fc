"""`topr export`: the rows of a mix as `datasets`, TRL and LLaMA-Factory read them."""

import json
from pathlib import Path

import datasets
import polars as pl
import pytest
import yaml

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Experiment
from topr_pipeline.export import export, upload
from topr_pipeline.tables import MIX, PROMPTS, REWARDS, SOLUTIONS, Table

EXPERIMENT = Experiment.model_validate(
    {
        "description": "Counting beads.",
        "iterations": 2,
        "policy": {"source": "tiny"},
        "prompts": {"source": "word_problems", "count": 4},
        "eval_prompts": {"source": "word_problems", "count": 2},
        "mix": {"steps": [{"strategy": "anna_karenina", "correct": 2}]},
    }
)
ROWS = [  # prompt, sample, outcome, in the mix?
    ("a", 0, "correct", True),
    ("a", 1, "incorrect", True),
    ("a", 2, "correct", True),
    ("a", 3, "unverifiable", False),
    ("b", 0, "incorrect", True),
    ("c", 0, "correct", False),
]


def write(table: Table, rows: pl.DataFrame, path: Path) -> None:
    missing = {c: pl.lit(None) for c in table.columns if c not in rows.columns}
    table.write(rows.with_columns(**missing), path)
    path.with_suffix(".json").write_text("{}")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """One iteration of `toy`."""
    root = tmp_path / "data"
    schema = ["prompt_id", "sample_index", "outcome", "mixed"]
    rows = pl.DataFrame(ROWS, schema=schema, orient="row").with_columns(
        text="says " + pl.col("prompt_id") + pl.col("sample_index").cast(pl.String),
        reward=pl.col("outcome").replace_strict(
            {"correct": 1.0, "incorrect": -1.0, "unverifiable": None}
        ),
        token_ids=pl.lit([1, 2]),
        iteration=1,
    )
    prompts = pl.DataFrame({"prompt_id": list("abc"), "prompt": list("ABC"), "gold": list("123")})
    write(PROMPTS, prompts, root / "toy/prompts.parquet")
    write(SOLUTIONS, rows, root / "toy/iter_01/solutions.parquet")
    write(REWARDS, rows, root / "toy/iter_01/rewards.parquet")
    write(MIX, rows.filter("mixed"), root / "toy/iter_01/mix.parquet")
    return root


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_mix_is_written_for_each_reader(data: Path, tmp_path: Path):
    folder = tmp_path / "out"
    written = export("toy", EXPERIMENT, 1, "mix", data, folder, "apache-2.0")
    assert written == {"data/train.parquet": 4, "sft.jsonl": 2, "dpo.jsonl": 1}
    assert lines(folder / "sft.jsonl") == [
        {"prompt": "A", "completion": "says a0"},
        {"prompt": "A", "completion": "says a2"},
    ]
    assert lines(folder / "dpo.jsonl") == [
        {"prompt": "A", "chosen": "says a0", "rejected": "says a1"}
    ]
    read = datasets.load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache"))
    assert isinstance(read, datasets.Dataset)
    assert read["completion"] == ["says a0", "says a1", "says a2", "says b0"]
    assert read["gold"] == ["1", "1", "1", "2"]
    for said in json.loads((folder / "dataset_info.json").read_text()).values():
        first = lines(folder / said["file_name"])[0]
        assert set(said["columns"].values()) == set(first)


def test_the_card_says_what_it_is_and_how_it_was_made(data: Path, tmp_path: Path):
    export("toy", EXPERIMENT, 1, "mix", data, tmp_path / "out", "apache-2.0")
    card = (tmp_path / "out/README.md").read_text()
    for said in (
        "license: apache-2.0",
        "Counting beads.",
        "4 samples of 2 prompts, 50.0% of them correct",
        "| correct | 2 | 50.0% |",
        "verifier: gsm8k",
        "strategy: anna_karenina",
    ):
        assert said in card


def test_the_card_of_a_stale_mix_says_so_and_any_license_is_valid_yaml(data: Path, tmp_path: Path):
    out = tmp_path / "out"
    export("toy", EXPERIMENT, 1, "mix", data, out, "other: ask", "mix changed")
    card = (out / "README.md").read_text()
    assert "**This was stale when it was exported (mix changed)" in card
    assert yaml.safe_load(card.split("---")[1])["license"] == "other: ask"


def test_solutions_are_all_there_and_pairs_only_of_rewarded_ones(data: Path, tmp_path: Path):
    written = export("toy", EXPERIMENT, 1, "solutions", data, tmp_path / "out")
    assert written == {"data/train.parquet": 6, "sft.jsonl": 3, "dpo.jsonl": 1}


def test_what_is_not_there_and_what_is_there_already_are_refused(data: Path, tmp_path: Path):
    with pytest.raises(ToprError, match=r"toy/iter_02 has no mix .*topr run toy --through 2"):
        export("toy", EXPERIMENT, 2, "mix", data, tmp_path / "out")
    with pytest.raises(ToprError, match="toy has iterations 1 to 2, not 3"):
        export("toy", EXPERIMENT, 3, "mix", data, tmp_path / "out")
    with pytest.raises(ToprError, match="is there already"):
        export("toy", EXPERIMENT, 1, "mix", data, tmp_path)


def test_what_the_hub_says_is_handed_on(data: Path, tmp_path: Path):
    with pytest.raises(ToprError, match=r"--hub a/b/c: .*can be uploaded again"):
        upload(tmp_path, "a/b/c")
