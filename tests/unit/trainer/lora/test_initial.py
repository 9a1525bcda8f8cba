"""An adapter of a smaller rank gets the job's: it computes the same, and all of it trains."""

from __future__ import annotations

import pytest
import torch

from lorarl_trainer.lora.config import AdapterConfig
from lorarl_trainer.lora.initial import widened

A, B, LENGTHS = (f"model.layers.0.self_attn.q_proj.{part}" for part in ("lora_A.weight", "lora_B.weight", "lengths"))
SMALL, LARGE = 3, 8
RANDOM = torch.Generator().manual_seed(0)
X = torch.randn(12, generator=RANDOM, dtype=torch.float64)


def adapter_of(rank: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    shapes = {A: (rank, 12), B: (10, rank), LENGTHS: (10,)}
    return {name: torch.randn(shape, generator=RANDOM).to(dtype) for name, shape in shapes.items()}


def fresh() -> dict[str, torch.Tensor]:
    adapter = adapter_of(LARGE)
    return adapter | {B: torch.zeros_like(adapter[B])}


def output(adapter: dict[str, torch.Tensor], scale: float) -> torch.Tensor:
    return scale * adapter[B].double() @ (adapter[A].double() @ X)


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("alphas", [(6, 16), (16, 6), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_computes_the_same(rslora: bool, alphas: tuple[int, int], dtype: torch.dtype) -> None:
    small, large = (AdapterConfig(rank, alpha, rslora) for rank, alpha in zip((SMALL, LARGE), alphas, strict=True))
    adapter = adapter_of(SMALL, dtype)
    wide = widened(adapter, fresh(), small.scale / large.scale)
    assert (wide[A].shape, wide[B].shape) == ((LARGE, 12), (10, LARGE))
    torch.testing.assert_close(output(wide, large.scale), output(adapter, small.scale), rtol=1e-6, atol=1e-6)


def test_its_own_values_stay_to_the_bit_where_the_scales_are_equal() -> None:
    adapter, new = adapter_of(SMALL), fresh()
    wide = widened(adapter, new, 1.0)
    assert torch.equal(wide[A][:SMALL], adapter[A])
    assert torch.equal(wide[B][:, :SMALL], adapter[B])
    assert torch.equal(wide[A][SMALL:], new[A][SMALL:])
    assert not wide[B][:, SMALL:].any()
    assert torch.equal(wide[LENGTHS], adapter[LENGTHS])


def test_the_new_columns_of_b_have_a_gradient() -> None:
    wide = {name: tensor.requires_grad_() for name, tensor in widened(adapter_of(SMALL), fresh(), 1.0).items()}
    output(wide, 1.0).sum().backward()
    gradient = wide[B].grad
    assert gradient is not None
    assert gradient[:, SMALL:].abs().min() > 0


def test_modules_that_the_job_does_not_have_are_left_for_its_check() -> None:
    adapter = adapter_of(SMALL)
    other = {f"other.{name}": tensor for name, tensor in adapter.items()}
    assert widened(adapter | other, fresh(), 1.0).keys() == adapter.keys() | other.keys()
