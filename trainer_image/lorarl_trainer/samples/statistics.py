"""What an evaluation's rewards say, and how sure that is. Pure.

Shape suffixes: P prompts, K completions of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lorarl_trainer.samples.arrays import Sums
from lorarl_trainer.samples.rounding import reached

_Z = 1.959964
"""Quantile of the normal distribution for 95%."""


@dataclass(frozen=True)
class Estimate:
    """A mean, and the bounds of its 95% interval; None where one value says nothing of its spread."""

    mean: float
    low: float | None
    high: float | None


def eval_metrics(rewards_P_K: Sums, pass_at: Sequence[int], least: float) -> tuple[float, dict[str, float]]:
    """Return the mean reward, and by name its 95% interval, and each pass@k with its own.

    Args:
        rewards_P_K: NaN where a completion could not be scored.
        pass_at: the k of each pass@k.
        least: the least reward of a completion that passes.
    """
    score = estimate(row_means(rewards_P_K))
    metrics = _ends("score", score)
    for k in pass_at:
        passes_P = row_passes(rewards_P_K, k, least)
        if not np.isnan(passes_P).all():
            passed = estimate(passes_P)
            metrics |= {f"pass_at_{k}": passed.mean, **_ends(f"pass_at_{k}", passed)}
    return score.mean, metrics


def row_means(rewards_P_K: Sums) -> Sums:
    """Return each prompt's mean reward over the completions that could be scored; NaN for a prompt without any."""
    counts_P = (~np.isnan(rewards_P_K)).sum(1)
    return np.where(counts_P > 0, np.nansum(rewards_P_K, axis=1) / np.maximum(counts_P, 1), np.nan)


def row_passes(rewards_P_K: Sums, k: int, least: float) -> Sums:
    """Return each prompt's pass@k, by completions with a reward of at least `least`; NaN if fewer than k are scored."""
    counts_P = (~np.isnan(rewards_P_K)).sum(1)
    passed_P = reached(rewards_P_K, least).sum(1)
    return np.array(
        [pass_at_k(int(n), int(c), k) if n >= k else math.nan for n, c in zip(counts_P, passed_P, strict=True)]
    )


def estimate(values_P: Sums) -> Estimate:
    """Return the mean of independent values with its `interval`. A prompt counts once; one with NaN is left out.

    Raises:
        ValueError: none is left.
    """
    return _estimate(values_P, interval)


def estimate_gain(before_P: Sums, after_P: Sums) -> Estimate:
    """Return the mean difference of the same prompts with its `normal_interval`. One with a NaN is left out.

    Raises:
        ValueError: none is left.
    """
    return _estimate(after_P - before_P, normal_interval)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the unbiased estimate that at least one of k completions passes, if c of n did: 1 - C(n-c, k) / C(n, k).

    Chen et al., "Evaluating Large Language Models Trained on Code", 2021 (arXiv:2107.03374), equation 1.
    """
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def interval(values: Sequence[float] | Sums) -> tuple[float, float] | None:
    """Return the 95% interval of the mean of independent values; None for fewer than two.

    Of values that are all 0 or 1 it is Wilson's (E. B. Wilson, 1927), which is right for few values and near 0 and 1,
    where the normal one would have no width. Otherwise it is the normal one, with the standard error of the prompts'
    means (E. Miller, "Adding Error Bars to Evals", 2024, arXiv:2411.00640), cut off at the lowest and highest value: a
    score that ends at 1 has no mean above 1.
    """
    values = np.asarray(values, dtype=np.float64)
    n = len(values)
    if n < 2:
        return None
    mean = float(values.mean())
    if np.isin(values, (0.0, 1.0)).all():
        middle = (mean + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
        half = _Z / (1 + _Z**2 / n) * math.sqrt(mean * (1 - mean) / n + _Z**2 / (4 * n**2))
        return middle - half, middle + half
    half = _Z * float(values.std(ddof=1)) / math.sqrt(n)
    return max(mean - half, float(values.min())), min(mean + half, float(values.max()))


def normal_interval(values: Sequence[float] | Sums) -> tuple[float, float] | None:
    """Return the 95% interval of the mean of independent values by the normal approximation; None for fewer than two.

    For a gain, give the differences of the same rows: paired, they have the smaller spread.
    """
    values = np.asarray(values, dtype=np.float64)
    if len(values) < 2:
        return None
    mean, half = float(values.mean()), _Z * float(values.std(ddof=1)) / math.sqrt(len(values))
    return mean - half, mean + half


def ratio_interval(sums: Sequence[float], weights: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% interval of sum(sums) / sum(weights) over independent rows; None for fewer than two.

    For a loss per token: a row's sum over its tokens, and their number. The variance is that of the linearised ratio
    (W. G. Cochran, "Sampling Techniques", 1977, chapter 6).
    """
    n, total = len(sums), float(np.sum(weights))
    if n < 2:
        return None
    ratio = float(np.sum(sums)) / total
    rests = np.asarray(sums, dtype=np.float64) - ratio * np.asarray(weights, dtype=np.float64)
    half = _Z * math.sqrt(n / (n - 1) * float(np.square(rests).sum())) / total
    return ratio - half, ratio + half


def _estimate(values_P: Sums, find: Callable[[Sums], tuple[float, float] | None]) -> Estimate:
    values = values_P[~np.isnan(values_P)]
    if not len(values):
        raise ValueError("a mean needs at least one value")
    return Estimate(float(np.mean(values)), *(find(values) or (None, None)))


def _ends(name: str, found: Estimate) -> dict[str, float]:
    if found.low is None or found.high is None:
        return {}
    return {f"{name}_low": found.low, f"{name}_high": found.high}
