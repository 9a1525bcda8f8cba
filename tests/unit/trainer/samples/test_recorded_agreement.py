"""No healthy step is stopped: 10,000 steps resampled from differences that were recorded on an H200, token by token.

benchmarks/bench_agreement.py made the files: SmolLM2-135M-Instruct at temperatures 0.6, 1.0 and 1.2 and with up to
7,000 tokens, and random weights of the 0.5B and 7B shapes; each without an adapter and with a probe.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lorarl_trainer.samples.agreement import DEPTHS, Agreement, AgreementLimits, depth_of

RECORDED = Path(__file__).parents[4] / "benchmarks/results/agreement-2026-11-23"
BASES = sorted(RECORDED.glob("*-base.npz"))
NAMES = [path.stem.removesuffix("-base") for path in BASES]
STEPS, COMPLETIONS, PROMPTS_AT_START, TOKENS_AT_START = 10_000, 64, 32, 32
"""A CPU has as many completions at its start: of 4 prompts, 8 each."""


def sums_of(path: Path, longest: int | None = None) -> np.ndarray:
    """[S, 3, DEPTHS]: each completion's differences, uncertainty and tokens, by depth."""
    with np.load(path) as found:
        ends = np.cumsum(found["lengths"])[:-1]
        difference, logprob = found["d"].astype(np.float64), found["lp"].astype(np.float64)
        columns = np.stack([np.abs(difference), 1 - np.exp(np.minimum(logprob + difference, 0.0))])
        depths = depth_of(found["pos"].astype(np.int64))
    made = []
    for part, depth in zip(np.split(columns, ends, axis=1), np.split(depths, ends), strict=True):
        kept, at = part[:, :longest], depth[:longest]
        made.append([np.bincount(at, weights, DEPTHS) for weights in (*kept, np.ones(len(at)))])
    return np.array(made)


def drawn(sums: np.ndarray, count: int, draw: np.random.Generator) -> Agreement:
    differences, uncertainty, tokens = sums[draw.integers(0, len(sums), count)].sum(0)
    return Agreement(differences, uncertainty, tokens, largest=0.0)


def test_there_are_records() -> None:
    assert len(BASES) >= 6


@pytest.mark.parametrize("base", BASES, ids=NAMES)
def test_no_step_of_a_healthy_run_is_stopped(base: Path) -> None:
    draw = np.random.default_rng(0)
    at_start = sums_of(base, TOKENS_AT_START)
    for steps in (sums_of(base), sums_of(base.with_name(base.name.replace("-base", "-probe")))):
        for _ in range(STEPS // len(BASES) // 2 + 1):
            limits = AgreementLimits.from_base(drawn(at_start, PROMPTS_AT_START, draw))
            assert limits.exceeded(drawn(steps, COMPLETIONS, draw)) is None


@pytest.mark.parametrize("base", BASES, ids=NAMES)
def test_no_step_is_stopped_where_answers_have_one_or_two_tokens(base: Path) -> None:
    draw, steps = np.random.default_rng(0), sums_of(base)
    for longest in (1, 2):
        at_start = sums_of(base, longest)
        for _ in range(1000):
            limits = AgreementLimits.from_base(drawn(at_start, PROMPTS_AT_START, draw))
            assert limits.exceeded(drawn(steps, COMPLETIONS, draw)) is None


@pytest.mark.parametrize("base", BASES, ids=NAMES)
def test_a_fifth_of_a_nat_on_top_is_found(base: Path) -> None:
    """As an engine would be that leaves out a part of what the probe changes."""
    draw = np.random.default_rng(0)
    at_start, steps = sums_of(base, TOKENS_AT_START), sums_of(base)
    steps[:, 0] += 0.2 * steps[:, 2]
    for _ in range(100):
        limits = AgreementLimits.from_base(drawn(at_start, PROMPTS_AT_START, draw))
        assert limits.exceeded(drawn(steps, COMPLETIONS, draw)) is not None
