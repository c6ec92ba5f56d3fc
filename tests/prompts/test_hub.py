"""The Hub without a network: `datasets` reads a local folder, or a loader stands for it."""

import json
from pathlib import Path

import pytest

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Columns, HubPrompts
from topr_pipeline.prompts import load_prompts

SPEC = HubPrompts(source="hub", name="my/set", split="train")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def test_a_local_folder_is_read_as_the_hub_would_be(tmp_path):
    folder = tmp_path / "my" / "set"
    folder.mkdir(parents=True)
    rows = [{"q": f"{n} + 1?", "a": f"#### {n + 1}", "level": n} for n in (1, 2)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "test.jsonl").write_text(json.dumps(rows[0]) + "\n")
    columns = Columns(prompt="q", gold="a", gold_format="gsm8k")
    frame = load_prompts(SPEC.model_copy(update={"columns": columns}), tmp_path, 0, "prompts")
    assert frame["prompt"].to_list() == ["1 + 1?", "2 + 1?"]
    assert frame["gold"].to_list() == ["2", "3"]
    assert frame["source"].to_list() == ["my/set train[0]", "my/set train[1]"]
    assert json.loads(frame["meta"][1]) == {"a": "#### 3", "level": 2}


def test_name_config_split_and_revision_are_passed_on(tmp_path, monkeypatch):
    asked = []

    def load_dataset(*args: object, **kwargs: object) -> list[dict[str, object]]:
        asked.append((args, kwargs))
        return [{"prompt": "One", "gold": 18}]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    spec = HubPrompts(source="hub", name="a/b", config="main", split="test", revision="abc123")
    frame = load_prompts(spec, tmp_path, 0, "eval_prompts")
    assert asked == [(("a/b", "main"), {"split": "test", "revision": "abc123"})]
    assert frame.select("gold", "source", "split").row(0) == ("18", "a/b test[0]", "eval")


def test_missing_columns_name_the_row_of_the_set(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: [{"question": "One", "gold": 1}])
    with pytest.raises(ToprError, match=r"my/set train\[0\]: no column 'prompt' \(prompts.columns"):
        load_prompts(SPEC, tmp_path, 0, "prompts")


def test_an_empty_split_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: [])
    with pytest.raises(ToprError, match=r"'my/set train' holds no prompt \(prompts.name\)"):
        load_prompts(SPEC, tmp_path, 0, "prompts")


def test_without_a_network_the_error_says_what_was_looked_for_and_what_helps(tmp_path, monkeypatch):
    for place in ("datasets.config.HF_HUB_OFFLINE", "huggingface_hub.constants.HF_HUB_OFFLINE"):
        monkeypatch.setattr(place, True)
    with pytest.raises(
        ToprError, match=r"'my/set' cannot be loaded \(prompts.name; split"
    ) as error:
        load_prompts(SPEC, tmp_path, 0, "prompts")
    assert "HF_HUB_OFFLINE=1" in str(error.value)
    assert "source: files" in str(error.value)


def test_an_unknown_split_of_a_local_folder_is_a_clear_error(tmp_path):
    folder = tmp_path / "my" / "set"
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text('{"prompt": "One", "gold": 1}\n')
    spec = SPEC.model_copy(update={"split": "validation"})
    with pytest.raises(ToprError, match=r"split 'validation'.*Unknown split"):
        load_prompts(spec, tmp_path, 0, "prompts")
