"""Random choices that depend on nothing but the seed and a row's key.

Every row has a 64-bit number, made from prompt_id and sample_index by SplitMix64; the rows with the
lowest numbers are chosen. So a choice is the same in whatever order, pieces or threads the rows
come. Axes: N rows, U prompts.
"""

from collections.abc import Callable, Iterable

import numpy as np
import polars as pl

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BINS = 1 << 16


def key_numbers(prompt_id_N: pl.Series, sample_index_N: pl.Series) -> np.ndarray:
    """A 64-bit number per row, from its key alone; fastest where a prompt's rows stand together."""
    if not len(prompt_id_N):
        return np.empty(0, np.uint64)
    run_N = prompt_id_N.rle_id().to_numpy()
    first_U = np.flatnonzero(np.diff(run_N, prepend=np.uint32(np.iinfo(np.uint32).max)))
    hash_U = _text_numbers(prompt_id_N.gather(first_U))
    return _mixed(hash_U[run_N] + (sample_index_N.to_numpy() + 1).astype(np.uint64) * _GOLDEN)


def seed_of(*parts: int) -> int:
    """A seed for each combination of numbers."""
    mixed = np.zeros(1, np.uint64)
    for part in parts:
        mixed = _mixed(mixed ^ np.array([part % 2**64], np.uint64))
    return int(mixed[0])


def reseeded(number_N: np.ndarray, seed: int) -> np.ndarray:
    """Numbers for another choice among the same rows."""
    return _mixed(number_N ^ _mixed(np.array([seed % 2**64], np.uint64)))


def weighted(number_N: np.ndarray, weight_N: np.ndarray) -> np.ndarray:
    """Numbers with which the lowest k are a weighted sample of k rows without replacement.

    -log(u) / weight, u uniform, as an order-preserving integer (Efraimidis and Spirakis, 2006).
    Rows of weight 0 come after all others, in random order.
    """
    u_N = ((number_N >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    with np.errstate(divide="ignore"):
        wait_N = np.where(weight_N > 0, -np.log(u_N) / weight_N, 1e300 * (1 + u_N))
    return wait_N.view(np.uint64)  # of positive doubles the bits are in the order of the values


def lowest(numbers: Callable[[], Iterable[np.ndarray]], k: int) -> np.uint64 | None:
    """The number up to which there are k: the rows to choose are those at or below it.

    `numbers` gives all numbers in pieces, and is called twice; memory holds one in 65,536. None
    for k = 0.
    """
    if k == 0:
        return None
    shift = np.uint64(48)
    count_B = np.zeros(_BINS, np.int64)
    for piece in numbers():
        count_B += np.bincount((piece >> shift).astype(np.int64), minlength=_BINS)
    below_B = np.cumsum(count_B)
    at = int(np.searchsorted(below_B, k))
    near = [piece[piece >> shift == np.uint64(at)] for piece in numbers()]
    before = int(below_B[at] - count_B[at])
    return np.partition(np.concatenate(near), k - before - 1)[k - before - 1]


def _text_numbers(text_U: pl.Series) -> np.ndarray:
    """A number per text: its bytes eight at a time, whatever the longest text is."""
    encoded = [text.encode() for text in text_U]
    words = max(1, -(-max(map(len, encoded)) // 8))
    word_UW = np.array(encoded, f"S{8 * words}").view("<u8").reshape(-1, words)
    hash_U = np.full(len(encoded), _GOLDEN)
    for word_U in word_UW.T:
        hash_U = np.where(word_U != 0, _mixed(hash_U ^ word_U), hash_U)
    return hash_U


def _mixed(x: np.ndarray) -> np.ndarray:
    """SplitMix64's output function."""
    with np.errstate(over="ignore"):
        x = x + _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
