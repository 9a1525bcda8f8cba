"""The options of the command are the fields of the settings."""

from __future__ import annotations

from dataclasses import fields

import pytest

from lorarl_operator.decide.settings import Settings
from lorarl_operator.main import Process, main
from lorarl_operator.options import chosen

REQUIRED = ["--trainer-image=x", "--lease-namespace=y"]


def test_without_options_the_settings_are_the_defaults() -> None:
    values = main.make_context("lorarl-operator", REQUIRED).params
    assert chosen(Settings, values) == Settings("x")
    assert chosen(Process, values) == Process(lease_namespace="y")


def test_every_option_is_a_field() -> None:
    names = {one.name for kind in (Settings, Process) for one in fields(kind)}
    assert {one.name for one in main.params} <= names


@pytest.mark.parametrize("given", ["--recovery-seconds=-1", "--cleanup-seconds=0", "--probes-port=65536"])
def test_a_number_out_of_its_range_is_refused(given: str) -> None:
    with pytest.raises(Exception, match="is not in the range"):
        main.make_context("lorarl-operator", [*REQUIRED, given])
