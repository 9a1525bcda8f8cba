"""The numbers of quantized weights: nearest, the same in every precision, and in NF4 those of bitsandbytes."""

from __future__ import annotations

import pytest
import torch

from lorarl_api.v1alpha1 import Quantization
from lorarl_trainer.kernels import nf4
from lorarl_trainer.kernels.formats import FORMATS
from lorarl_trainer.kernels.nf4_tables import levels, steps
from lorarl_trainer.kernels.quantized_linear import dequantized, quantized, rounded
from support.nf4_reference import recorded, rows

every_format = pytest.mark.parametrize("quantization", FORMATS)


def weights(outputs: int = 64, inputs: int = 328) -> torch.Tensor:
    """Rows of very different sizes, one of them zero, that end within a block."""
    found = torch.randn(outputs, inputs) * torch.logspace(-6, 3, outputs)[:, None]
    found[3] = 0.0
    return found


def test_codes_in_fp8_are_the_nearest_and_exact() -> None:
    weight = weights()
    codes, scale = quantized(FORMATS["fp8"], weight).values()
    assert torch.equal(scale.frexp().mantissa, torch.full_like(scale, 0.5)), "powers of two"
    exact = dequantized(FORMATS["fp8"], [codes, scale], torch.float32)
    assert ((exact - weight).abs() <= weight.abs() / 16 + scale * 2.0**-10).all()


def test_nf4_is_what_bitsandbytes_makes_of_each_row() -> None:
    for row, theirs in zip(rows(), recorded(), strict=True):
        codes, scales, of_row = nf4.quantized(row)
        assert codes.flatten().tolist() == theirs["codes"]
        if theirs["spread"]:  # otherwise no scale has a step
            assert scales.flatten().tolist() == theirs["scales"]
        assert torch.allclose(of_row, torch.tensor([[theirs["spread"], theirs["mean"]]]), rtol=1e-6)
        ours, expected = nf4.dequantized(codes, scales, of_row, torch.float32), torch.tensor([theirs["values"]])
        assert torch.allclose(ours, expected, rtol=2.0**-8, atol=0.0), "one rounding to bf16"


def test_codes_in_nf4_are_the_nearest() -> None:
    weight = weights()
    found = rounded(FORMATS["nf4"], weight, torch.float32)
    blocks = torch.nn.functional.pad(weight, (0, -weight.shape[1] % 64)).view(len(weight), -1, 64)
    largest = blocks.abs().amax(dim=2).repeat_interleave(64, dim=1)[:, : weight.shape[1]]
    widest = torch.diff(levels(weight.device)).max() / 2
    assert ((found - weight).abs() <= (widest + 0.03) * largest).all(), "0.03 for scales in a byte"
    assert (found - weight).square().sum() < 0.02 * weight.square().sum()
    assert not found[3].any()


def test_the_tables_are_in_float32_whatever_is_usual() -> None:
    """Libraries load models with another default dtype, on another default device."""
    cpu = torch.device("cpu")
    expected = levels(cpu), steps(cpu)
    usual = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("meta"):
            found = levels.__wrapped__(cpu), steps.__wrapped__(cpu)
    finally:
        torch.set_default_dtype(usual)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@every_format
def test_the_numbers_are_the_same_in_bf16_and_in_float32(quantization: Quantization) -> None:
    of, weight = FORMATS[quantization], weights()
    tensors = list(quantized(of, weight).values())
    exact = dequantized(of, tensors, torch.float32)
    assert torch.equal(dequantized(of, tensors, torch.bfloat16).float(), exact) and not torch.equal(exact, weight)


@every_format
def test_rows_can_be_taken_and_joined(quantization: Quantization) -> None:
    """As vLLM's fused layers do: the tensors of q, k and v, in turn, are those of all rows."""
    of, weight = FORMATS[quantization], weights()
    parts = [quantized(of, part) for part in weight.split([40, 7, 17])]
    for name, whole in quantized(of, weight).items():
        assert torch.equal(torch.cat([part[name] for part in parts]).view(torch.uint8), whole.view(torch.uint8))


@every_format
def test_a_value_that_is_not_finite_shows_in_what_is_float32(quantization: Quantization) -> None:
    weight = weights()
    weight[5, 7] = torch.inf
    *_, scale = quantized(FORMATS[quantization], weight).values()
    assert sorted(set(scale.isnan().nonzero()[:, 0].tolist())) == [5]


@every_format
@pytest.mark.parametrize("inputs", [64, 100, 3584])
def test_tensors_take_the_bytes_that_are_planned(quantization: Quantization, inputs: int) -> None:
    of = FORMATS[quantization]
    tensors = quantized(of, torch.randn(8, inputs))
    for held in of.tensors:
        found = tensors[held.name]
        assert (found.shape, found.dtype) == (held.shape(8, inputs), getattr(torch, held.dtype))
    assert of.bytes_of([(8, inputs)]) == sum(tensor.nbytes for tensor in tensors.values())
