"""What stands for Triton on machines that have no use for it, while megatron-core defines its kernels."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from lorarl_trainer.backends.megatron import platform_cpu

KERNELS = """
import triton
import triton.language as tl
from triton import language

HAVE_TRITON = tl.constexpr(False)

@triton.jit
def plain(x, BLOCK: tl.constexpr): return "plain"

@triton.autotune(configs=[triton.Config({"BLOCK": 64}, num_warps=4)], key=["n"])
@triton.heuristics({"BLOCK": lambda arguments: triton.next_power_of_2(arguments["n"])})
@triton.jit(do_not_specialize=["n"])
def tuned(x, n, BLOCK: tl.constexpr): return "tuned"
"""


def test_kernels_are_defined_where_triton_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._dynamo  # noqa: F401  # torch looks for Triton once: before this test hides it

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    names: dict[str, object] = {}
    for module in ("triton", "triton.language"):
        monkeypatch.delitem(sys.modules, module, raising=False)

    with platform_cpu._absent_triton():
        exec(KERNELS, names)

    assert names["plain"](0, 1) == "plain"  # type: ignore[operator]
    assert names["tuned"](0, 1, 2) == "tuned"  # type: ignore[operator]
    assert names["HAVE_TRITON"] is False
    assert not {"triton", "triton.language"} & sys.modules.keys(), "whoever looks for Triton later finds none"


def test_triton_itself_is_taken_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    before = sys.modules.get("triton")
    with platform_cpu._absent_triton():
        assert sys.modules.get("triton") is before
