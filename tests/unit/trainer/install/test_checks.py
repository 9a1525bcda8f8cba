"""`lorarl setup` refuses what cannot work before it downloads anything, and says what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lorarl_trainer.errors import InputError
from lorarl_trainer.install.checks import NEEDED_GIGABYTES, Machine, look, require
from lorarl_trainer.install.locks import Flavour

GOOD = Machine(
    python=(3, 12),
    system="linux-x86_64-glibc",
    prefix=Path("/home/me/.venv"),
    isolated=True,
    installed=None,
    free_gigabytes=40.0,
    compiler="/usr/bin/g++",
    python_headers=True,
    has_libnuma=True,
)


@pytest.mark.parametrize("flavour", ["cpu", "gpu"])
def test_a_machine_that_has_all_is_accepted(flavour: Flavour) -> None:
    require(GOOD, flavour)


@pytest.mark.parametrize(
    ("flavour", "change", "field", "got", "hint"),
    [
        ("cpu", {"python": (3, 13)}, "Python", "3.13", "python3.12 -m venv .venv"),
        ("cpu", {"system": "macosx-14.0-arm64-other libc"}, "system", "macosx-14.0-arm64", "lorarl validate"),
        ("cpu", {"isolated": False}, "environment", "not a virtual environment", "python3.12 -m venv .venv"),
        ("gpu", {"installed": "cpu"}, "environment", "the trainer for CPUs", "another environment"),
        ("cpu", {"free_gigabytes": 7.9}, "disk", "7.9 GB free for /home/me/.venv", "another disk"),
        ("gpu", {"free_gigabytes": 8.5}, "disk", "8.5 GB", "Free some space"),
        ("cpu", {"has_libnuma": False}, "libnuma", "no libnuma.so.1", "apt-get install libnuma1"),
        ("gpu", {"compiler": None}, "compiler", "no C++ compiler", "apt-get install g++"),
        ("gpu", {"python_headers": False}, "Python", "no Python.h", "apt-get install python3.12-dev"),
    ],
)
def test_what_is_missing_is_named_with_the_way_to_get_it(
    flavour: Flavour, change: dict[str, Any], field: str, got: str, hint: str
) -> None:
    with pytest.raises(InputError) as refused:
        require(replace(GOOD, **change), flavour)
    assert refused.value.field == field
    assert got in refused.value.got
    assert hint in refused.value.hint


def test_a_cpu_needs_no_compiler() -> None:
    require(replace(GOOD, compiler=None, python_headers=False), "cpu")


def test_packages_that_are_there_need_no_more_disk() -> None:
    require(replace(GOOD, installed="gpu", free_gigabytes=0.1), "gpu")


def test_the_environment_of_the_tests_is_seen_as_it_is() -> None:
    machine = look()
    assert (machine.python, machine.isolated) == ((3, 12), True)
    assert machine.free_gigabytes > 0
    assert set(NEEDED_GIGABYTES) >= {machine.installed}
