"""The bootstrap over prompts, of means and of paired differences of means."""

import numpy as np

_BLOCK = 1 << 22
"""Prompts drawn at a time: bounds the memory at about 100 MB."""


def bootstrap(
    values_PM: np.ndarray, resamples: int, confidence: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile interval of each column's mean over its defined (not NaN) prompts.

    Returns the lower and upper ends, shape M each.
    """
    return interval(resampled_means(values_PM, resamples, seed), confidence)


def interval(means_RM: np.ndarray, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """The middle `confidence` of the R resampled means: lower and upper ends, shape M each."""
    tail = (1 - confidence) / 2
    low_M, high_M = np.nanquantile(means_RM, [tail, 1 - tail], axis=0)
    return low_M, high_M


def resampled_means(values_PM: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Means of the M columns over P prompts that are drawn with replacement, shape (resamples, M).

    The same draws for all columns. A mean is over the drawn prompts that are defined (not NaN).
    Memory does not grow with `resamples` times prompts.
    """
    rng = np.random.default_rng(seed)
    prompts = len(values_PM)
    defined_PM = ~np.isnan(values_PM)
    sums_of = np.hstack([np.where(defined_PM, values_PM, 0), defined_PM])
    totals = np.empty((resamples, sums_of.shape[1]))
    block = max(1, _BLOCK // prompts)
    for start in range(0, resamples, block):
        some = min(block, resamples - start)
        drawn = rng.integers(0, prompts, (some, prompts), dtype=np.int32)
        drawn += (np.arange(some, dtype=np.int32) * prompts)[:, None]
        times = np.bincount(drawn.ravel(), minlength=some * prompts).reshape(some, prompts)
        totals[start : start + some] = times.astype(float) @ sums_of
    sums, counts = np.hsplit(totals, 2)
    return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
