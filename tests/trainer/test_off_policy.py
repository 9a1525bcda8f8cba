"""Training on samples of adapters that are 1, 2 and 4 versions old: what the correction is for, on the demo's toy."""

from __future__ import annotations

import statistics

import pytest

from bench_off_policy import CORRECTION, SETTINGS
from support.addition import Learned, learn, make_addition

pytestmark = pytest.mark.long

LAST = 30


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, bool], Learned]:
    """What is learned, by the number of versions behind and whether it is corrected."""
    folder = tmp_path_factory.mktemp("off-policy")
    addition, found = make_addition(folder / "addition"), {}
    for behind, corrected in [(0, False), (1, True), (2, True), (4, True), (4, False)]:
        correction = [f"spec.algorithm.correction={{preset: {CORRECTION}}}"] if corrected else []
        out = folder / f"{behind}-{corrected}"
        out.mkdir()
        found[behind, corrected] = learn(addition, out, behind, *SETTINGS, *correction)
    return found


def mean(learned: Learned, metric: str) -> float:
    return statistics.fmean(row[metric] for row in learned.metrics)


@pytest.mark.parametrize("behind", [1, 2, 4])
def test_corrected_it_ends_within_three_points_of_on_policy(runs: dict[tuple[int, bool], Learned], behind: int) -> None:
    on_policy = runs[0, False]
    assert on_policy.scores[LAST] > on_policy.scores[0] + 0.2
    assert runs[behind, True].scores[LAST] > on_policy.scores[LAST] - 0.03


def test_uncorrected_and_four_versions_behind_it_is_worse(runs: dict[tuple[int, bool], Learned]) -> None:
    assert runs[4, False].scores[LAST] < runs[0, False].scores[LAST] - 0.05
    assert runs[4, False].scores[LAST] < runs[4, True].scores[LAST] - 0.05


def test_the_metrics_say_how_far_off_the_policy_it_was(runs: dict[tuple[int, bool], Learned]) -> None:
    divergence = [mean(runs[behind, behind > 0], "rollout_kl") for behind in (0, 1, 2, 4)]
    assert divergence[0] < 1e-6 and divergence[1] > 1e-4, divergence
    assert divergence[1] < divergence[2] < divergence[3] < mean(runs[4, False], "rollout_kl"), divergence
    effective = [mean(runs[behind, True], "correction/effective_share") for behind in (1, 2, 4)]
    assert 0.5 < effective[2] < effective[1] < effective[0] < 1, effective
    assert mean(runs[4, True], "correction/clipped_share") > 0
