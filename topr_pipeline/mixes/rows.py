"""Solutions and rewards of one iteration, read in chunks of whole prompts.

Tables that were written here hold the samples of a prompt one after another, and rewards in the
order of the solutions. Then a chunk is a stretch of both files. Otherwise (tables from elsewhere,
further samples in tables of their own) all are first taken apart by prompt into files beside the
artifact.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from topr_pipeline.mixes.pairing import KEY, paired
from topr_pipeline.tables import OUTCOMES, REWARDS, SOLUTIONS, Table

TOKENS = ["prompt_token_ids", "token_ids", "logprobs", "logprob"]
"""What a mix carries of a solution besides its key."""

CHUNK = 1 << 20
"""Rows of a chunk at most, where no prompt has more."""

_OUTCOME = pl.Enum(OUTCOMES)
_WORDS = r"[^\p{L}\p{N}+\-*/=<>%^.]+|\.(?:\s|$)"
"""What lies between the words of a text: not the signs that change a calculation."""

OF_SOLUTIONS: Mapping[str, pl.Expr] = {
    "text": pl.col("text"),
    "completion": pl.col("text").hash(),
    "wording": pl.col("text")
    .str.to_lowercase()
    .str.replace_all(_WORDS, " ")
    .str.strip_chars()
    .hash(),
    "length": pl.col("token_ids").list.len().cast(pl.Int32),
}
OF_REWARDS: Mapping[str, pl.Expr] = {
    "answer": pl.col("answer"),
    "same_answer": pl.when(pl.col("answer").is_not_null()).then(pl.col("answer").hash()),
}
"""Columns that a step may read; one that none reads is not loaded. Texts are compared by hash."""


@dataclass(frozen=True)
class Rewarded:
    """One iteration's solutions with their rewards.

    `files` are those of each chunk by the name of their table, or, with `heights`, the two that
    all chunks are stretches of, of so many rows. `row_bytes` is the size of a row of TOKENS, about.
    """

    iteration: int
    row_bytes: float
    files: Sequence[Mapping[str, Sequence[Path]]]
    heights: Sequence[int] = ()

    def narrow(self, columns: Collection[str]) -> Iterator[pl.DataFrame]:
        """Per chunk its rows: a prompt's stand together, in the order of sample_index.

        Columns: `at` (row of the chunk), `prompt` (number of the prompt in the chunk), KEY,
        outcome, reward, solve_rate, and `columns` of OF_SOLUTIONS and OF_REWARDS. Raises ToprError
        for a reward without a solution, the reverse, or a row that stands twice.
        """
        of_solutions = [OF_SOLUTIONS[c].alias(c) for c in OF_SOLUTIONS if c in columns]
        of_rewards = [OF_REWARDS[c].alias(c) for c in OF_REWARDS if c in columns]
        wanted = [*KEY, pl.col("outcome").cast(_OUTCOME), "reward", *of_rewards]
        solutions = self._read(SOLUTIONS, [*KEY, *of_solutions])
        rewards = self._read(REWARDS, wanted)
        for left, right in zip(solutions, rewards, strict=True):
            yield _numbered(_side_by_side(left.with_row_index("at"), right))

    def wide(self, columns: Sequence[str] = TOKENS) -> Iterator[pl.DataFrame]:
        """Per chunk KEY and `columns` of the solutions of its rows."""
        return self._read(SOLUTIONS, [*KEY, *columns])

    def prompt_bounds(self, ranges: int) -> list[str]:
        """Prompt ids that divide the rows into `ranges` about equal ranges."""
        files = [file for files in self.files for file in files[SOLUTIONS.name]]
        every = [
            SOLUTIONS.scan(f).select("prompt_id").gather_every(max(sizes(f, [])[0] // 4096, 1))
            for f in files
        ]
        ids = pl.concat(every).collect(engine="streaming")["prompt_id"].sort()
        at = {len(ids) * i // ranges for i in range(1, ranges)}
        return ids[sorted(at)].unique(maintain_order=True).to_list()

    def _read(self, table: Table, columns: Sequence[str | pl.Expr]) -> Iterator[pl.DataFrame]:
        if self.heights:  # in one pass: each time a file is opened, its whole footer is read
            lazy = table.scan(self.files[0][table.name][0]).select(columns)
            some = max(max(self.heights) // 4, 1024)
            yield from cut(lazy.collect_batches(chunk_size=some), self.heights)
            return
        for files in self.files:
            parts = [table.empty().lazy(), *map(table.scan, files[table.name])]
            yield pl.concat(parts).select(columns).collect(engine="streaming")


def rewarded(
    iteration: int,
    solutions: Path,
    rewards: Path,
    folder: Path,
    memory: int,
    further: tuple[Path, Path] | None = None,
) -> Rewarded:
    """Find the chunks; tables that are in no order are rewritten below `folder`.

    `further` are more solutions and their rewards, of the same prompts.
    """
    rows, row_bytes = sizes(solutions, TOKENS)
    pairs = [(solutions, rewards)]
    if further and (added := sizes(further[0], [])[0]):
        rows += added
        pairs.append(further)
    whole = {"solutions": [s for s, _ in pairs], "rewards": [r for _, r in pairs]}
    most = int(min(CHUNK, max(memory // 16 / row_bytes, 1024)))
    if rows <= most:
        return Rewarded(iteration, row_bytes, [whole])
    if len(pairs) == 1 and (heights := _stretches(solutions, rewards, most)):
        return Rewarded(iteration, row_bytes, [whole], heights)
    parts = _taken_apart(whole, folder, -(-2 * rows // most))
    return Rewarded(iteration, row_bytes, parts)


def sizes(file: Path, columns: Sequence[str]) -> tuple[int, float]:
    """Rows of a Parquet file, and about how many bytes of memory a row of `columns` takes."""
    metadata = pq.ParquetFile(file).metadata
    groups = range(0, metadata.num_row_groups, max(metadata.num_row_groups // 32, 1))
    held = rows = 0
    for group in map(metadata.row_group, groups):
        rows += group.num_rows
        parts = map(group.column, range(group.num_columns))
        held += sum(
            # As encoded, numbers may take half of their size in memory.
            2 * part.total_uncompressed_size
            for part in parts
            if part.path_in_schema.split(".")[0] in columns
        )
    return metadata.num_rows, held / max(rows, 1) + 16 * len(columns)


def cut(frames: Iterable[pl.DataFrame], heights: Iterable[int]) -> Iterator[pl.DataFrame]:
    """The rows of `frames`, in order, in frames of `heights` rows."""
    source, held, have = iter(frames), [], 0
    for height in heights:
        while have < height and (frame := next(source, None)) is not None:
            held.append(frame)
            have += frame.height
        together = pl.concat(held) if held else pl.DataFrame()
        yield together.head(height).rechunk()
        held, have = [together.slice(height)], max(have - height, 0)


def _side_by_side(solutions: pl.DataFrame, rewards: pl.DataFrame) -> pl.DataFrame:
    if solutions.select(KEY).equals(rewards.select(KEY)):
        return solutions.hstack(rewards.drop(KEY))
    return paired(solutions, rewards)


def _numbered(rows: pl.DataFrame) -> pl.DataFrame:
    """With `prompt` and `solve_rate`, in order; ToprError for a row that stands twice."""
    rows = rows.with_columns(prompt=pl.col("prompt_id").rle_id())
    if not _in_order(rows):
        rows = rows.sort(KEY).with_columns(prompt=pl.col("prompt_id").rle_id())
        if not _in_order(rows):
            paired(rows.select(KEY), rows.drop("at"))  # says which row stands twice
    prompt_N, counted_N = rows["prompt"].to_numpy(), rows["outcome"] != "unverifiable"
    correct_P = np.bincount(prompt_N, rows["outcome"] == "correct")
    with np.errstate(invalid="ignore"):
        rate_P = correct_P / np.bincount(prompt_N, counted_N)
    return rows.with_columns(solve_rate=pl.Series(rate_P[prompt_N], nan_to_null=True))


def _in_order(rows: pl.DataFrame) -> bool:
    """Does each prompt stand in one piece, its samples ascending?"""
    runs = rows["prompt_id"].filter(rows["prompt"].diff().fill_null(1) != 0)
    ascending = (rows["sample_index"].diff() > 0) | (rows["prompt"].diff() != 0)
    return bool(ascending.all()) and runs.n_unique() == len(runs)


def _stretches(solutions: Path, rewards: Path, most: int) -> list[int] | None:
    """Heights of chunks of whole prompts; None where the tables are not in one order.

    Holds 8 bytes per prompt: a hash, to find one that stands in two places.
    """
    left = SOLUTIONS.scan(solutions).select(KEY)
    right = REWARDS.scan(rewards).select(pl.col(KEY).name.prefix("rewarded_"))
    both = pl.concat([left, right], how="horizontal")
    heights, seen, last, since, done = [], [], None, 0, 0
    for batch in both.collect_batches(chunk_size=CHUNK // 8):
        apart = [pl.col(c).ne_missing(pl.col(f"rewarded_{c}")).any() for c in KEY]
        if any(batch.select(apart).row(0)):
            return None
        ids = batch["prompt_id"]
        before = pl.concat([pl.Series("prompt_id", [last], pl.String), ids.head(-1)])
        start_S = ids.ne_missing(before).arg_true()
        seen.append(ids.gather(start_S).hash().to_numpy())
        for start in _cuts(start_S.to_numpy() + done, since, most):
            heights.append(start - since)
            since = start
        last, done = ids[-1], done + len(ids)
    hash_P = np.concatenate(seen)
    hash_P.sort()
    return None if (hash_P[1:] == hash_P[:-1]).any() else [*heights, done - since]


def _cuts(start_S: np.ndarray, since: int, most: int) -> Iterator[int]:
    """Of the rows where a prompt starts, those at which a chunk begins of about `most` rows."""
    while True:
        at = int(np.searchsorted(start_S, since + most))
        if at == len(start_S):
            return
        since = int(start_S[at])
        yield since


def _taken_apart(
    whole: Mapping[str, Sequence[Path]], folder: Path, parts: int
) -> list[Mapping[str, Sequence[Path]]]:
    """Both tables in `parts` pieces by prompt, as files."""
    for table in (SOLUTIONS, REWARDS):
        rows = pl.concat([table.scan(file) for file in whole[table.name]])
        rows.with_columns(part=pl.col("prompt_id").hash() % parts).sink_parquet(
            pl.PartitionBy(folder / table.name, key="part", include_key=False),
            compression="lz4",
            mkdir=True,
        )
    return [
        {t.name: sorted((folder / t.name / f"part={part}").glob("*")) for t in (SOLUTIONS, REWARDS)}
        for part in range(parts)
    ]
