from concurrent.futures import ThreadPoolExecutor

from topr_pipeline.rewards import cache
from topr_pipeline.rewards.pool import Verdict

PAIRS = [("a", "1"), ("b", "1"), ("a", "2")]
RIGHT = Verdict("correct", "a", "why", 1.5)


def test_what_is_stored_is_found_by_gold_and_answer(tmp_path):
    cache.store(tmp_path, "math/1", PAIRS, {0: RIGHT, 1: Verdict("incorrect")})
    found = cache.lookup(tmp_path, "math/1", PAIRS[::-1])
    assert found == {2: Verdict("correct", "a", "why"), 1: Verdict("incorrect")}


def test_another_version_or_verifier_finds_nothing(tmp_path):
    cache.store(tmp_path, "math/1", PAIRS, {0: RIGHT})
    assert cache.lookup(tmp_path, "math/2", PAIRS) == {}
    assert cache.lookup(tmp_path, "own/1", PAIRS) == {}


def test_gold_and_answer_are_not_mixed_up(tmp_path):
    cache.store(tmp_path, "v", [("ab", "c"), ("x", "y")], {0: RIGHT, 1: RIGHT})
    assert cache.lookup(tmp_path, "v", [("a", "bc"), ("y", "x"), ("abc", "")]) == {}


def test_stopped_pairs_are_not_kept(tmp_path):
    cache.store(tmp_path, "v", PAIRS, {0: Verdict("unverifiable", lasting=False)})
    assert cache.lookup(tmp_path, "v", PAIRS) == {}
    assert list(tmp_path.iterdir()) == []


def test_no_folder_keeps_nothing():
    cache.store(None, "v", PAIRS, {0: RIGHT})
    assert cache.lookup(None, "v", PAIRS) == {}


def test_many_runs_at_once_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "MOST_FILES", 1000)

    def run(number: int) -> None:
        pair = [(f"answer {number}", "gold")]
        cache.store(tmp_path, "v", pair, {0: RIGHT})
        assert cache.lookup(tmp_path, "v", pair)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(run, range(20)))
    pairs = [(f"answer {number}", "gold") for number in range(20)]
    assert len(cache.lookup(tmp_path, "v", pairs)) == 20


def test_files_are_merged_and_damaged_ones_ignored(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "MOST_FILES", 3)
    pairs = [(f"{number}", "gold") for number in range(8)]
    for at in range(8):
        cache.store(tmp_path, "v", pairs, {at: RIGHT})
    folder = tmp_path / "v"
    assert len(list(folder.iterdir())) <= 3
    (folder / "torn.parquet").write_bytes(b"PAR1 and no more")
    assert len(cache.lookup(tmp_path, "v", pairs)) == 8


def test_lone_surrogates_and_nulls_are_keys_like_any_other(tmp_path):
    pairs = [("\x00", "g"), ("\x00\x00", "g"), ("\ud800", "g")]
    cache.store(tmp_path, "v", pairs, {0: RIGHT, 2: RIGHT})
    assert sorted(cache.lookup(tmp_path, "v", pairs)) == [0, 2]
