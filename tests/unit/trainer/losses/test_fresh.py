"""Columns that are means over fresh tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lorarl_trainer.losses.fresh import OF_FRESH
from lorarl_trainer.losses.registry import compute_loss, finished
from lorarl_trainer.samples.requests import LossChoice
from unit.trainer.losses.test_losses import inputs

WITH_KL = LossChoice("policy_gradient", 0.2, kl_coefficient=0.5)
FRESH = torch.tensor([True, False, True, True, False])


def metrics_of(fresh: torch.Tensor | None, chosen: torch.Tensor | None = None) -> dict[str, float]:
    """The metrics of an update of five tokens, or of the `chosen` ones."""
    given = replace(inputs(5, base=True), fresh=fresh)
    if chosen is not None:
        names = ("logprobs", "measured", "rollout", "advantages", "base")
        given = replace(given, **{name: getattr(given, name)[chosen] for name in names})
    _, columns = compute_loss(given, WITH_KL)
    return finished({name: column.double().sum().item() / len(given.measured) for name, column in columns.items()})


def test_estimates_by_the_policys_own_samples_are_of_fresh_tokens() -> None:
    found, alone = metrics_of(FRESH), metrics_of(None, FRESH)
    assert alone.keys() == found.keys() and alone.keys() > set(OF_FRESH)
    assert {name: found[name] for name in OF_FRESH} == pytest.approx({name: alone[name] for name in OF_FRESH})


def test_where_all_tokens_are_fresh_the_means_are_of_all_to_the_last_bit() -> None:
    assert metrics_of(None) == metrics_of(torch.ones(5, dtype=torch.bool))
    _, columns = compute_loss(inputs(5, base=True), WITH_KL)
    assert metrics_of(None)["entropy"] == columns["entropy"].double().sum().item() / 5


def test_where_no_token_is_fresh_there_are_no_such_metrics() -> None:
    assert metrics_of(torch.zeros(5, dtype=torch.bool)).keys() == metrics_of(None).keys() - set(OF_FRESH)


def test_which_tokens_are_fresh_changes_neither_loss_nor_columns_names() -> None:
    given = inputs(5, base=True)
    (loss, columns), (other, names) = (compute_loss(replace(given, fresh=fresh), WITH_KL) for fresh in (None, FRESH))
    torch.testing.assert_close(loss, other, rtol=0, atol=0)
    assert columns.keys() == names.keys(), "ranks with other samples add up the same columns"
