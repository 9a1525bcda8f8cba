"""What an algorithm is stands in its row, and the contract follows from the rows."""

from __future__ import annotations

from typing import get_args

import pytest

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_api.v1alpha1.algorithm_types import ABOUT, AlgorithmType
from lorarl_trainer.algorithms.registry import ALGORITHMS

FIELDS = {str(field.alias): field for field in AlgorithmSpec.model_fields.values()}


def test_every_type_has_a_row_and_an_algorithm() -> None:
    assert set(get_args(AlgorithmType)) == ABOUT.keys() == ALGORITHMS.keys()


@pytest.mark.parametrize("kind", ABOUT)
def test_its_options_are_a_group_of_its_name(kind: AlgorithmType) -> None:
    options = ABOUT[kind].options
    assert (kind in FIELDS) == (options is not None)
    assert options is None or FIELDS[kind].annotation == options | None


@pytest.mark.parametrize("kind", ABOUT)
def test_it_refuses_fields_that_there_are(kind: AlgorithmType) -> None:
    assert ABOUT[kind].without.keys() <= FIELDS.keys()


@pytest.mark.parametrize("kind", ABOUT)
def test_the_trainer_has_what_the_row_says(kind: AlgorithmType) -> None:
    about = ABOUT[kind]
    teacher = {"distillation": {"adapter": "file:teacher"}} if kind == "distillation" else {}
    spec = AlgorithmSpec.model_validate({"type": kind, **teacher})
    algorithm = ALGORITHMS[kind](spec, 16)
    assert algorithm.group_size == spec.effective_group_size == about.group_size
    assert (algorithm.critic is not None) == about.critic
