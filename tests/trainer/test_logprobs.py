"""Log-probabilities by chunks against log_softmax over whole logits: values and gradients, also on split ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

from lorarl_trainer.kernels.logprobs import rows_of_chunk, token_log_probabilities
from lorarl_trainer.planning.usual import LOGITS_CHUNK

TOKENS, HIDDEN, VOCABULARY, PADDED, TEMPERATURE = 37, 24, 90, 96, 0.7


def example() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, the output layer's weight with padding rows that would win, targets, and weights of the loss."""
    stream = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, generator=stream)
    weight = torch.randn(PADDED, HIDDEN, generator=stream)
    weight[VOCABULARY:] *= 100
    targets = torch.randint(0, VOCABULARY, (TOKENS,), generator=stream)
    # The model is sure of some tokens: there, one minus the probability matters.
    hidden[:4] = 6 * weight[targets[:4]] / weight[targets[:4]].norm(dim=1, keepdim=True)
    return hidden, weight, targets, torch.randn(TOKENS, generator=stream)


def naive() -> tuple[torch.Tensor, torch.Tensor]:
    hidden, weight, targets, scales = example()
    hidden = hidden.double().requires_grad_()
    logits = hidden @ weight[:VOCABULARY].double().t() / TEMPERATURE
    logprobs = logits.log_softmax(1).gather(1, targets[:, None])[:, 0]
    (logprobs * scales).sum().backward()
    assert hidden.grad is not None
    return logprobs.detach().float(), hidden.grad.float()


def chunked(weight: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    hidden, _, targets, scales = example()
    hidden.requires_grad_()
    logprobs = token_log_probabilities(hidden, weight, targets, TEMPERATURE, VOCABULARY, dist.group.WORLD, rows)
    (logprobs * scales).sum().backward()
    assert hidden.grad is not None
    return logprobs.detach(), hidden.grad


@pytest.fixture
def one_rank() -> None:
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


@pytest.mark.parametrize("rows", [1, 5, 16, 37, 64, rows_of_chunk(LOGITS_CHUNK, example()[1])])
def test_chunks_of_any_size_equal_log_softmax(one_rank: None, rows: int) -> None:
    (logprobs, gradient), expected = chunked(example()[1], rows), naive()
    torch.testing.assert_close(logprobs, expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, expected[1], rtol=1e-4, atol=1e-5)


def test_without_a_gradient_none_is_computed(one_rank: None) -> None:
    hidden, weight, targets, _ = example()
    with torch.no_grad():
        logprobs = token_log_probabilities(hidden, weight, targets, TEMPERATURE, VOCABULARY, dist.group.WORLD, 16)
    assert not logprobs.requires_grad
    torch.testing.assert_close(logprobs, naive()[0], rtol=1e-5, atol=1e-5)


def _rank(rank: int, rendezvous: str, out: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    torch.save(chunked(example()[1].chunk(2)[rank], 16), f"{out}/{rank}.pt")
    dist.destroy_process_group()


def test_ranks_that_share_the_vocabulary_agree(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_rank, (str(tmp_path / "meeting"), str(tmp_path)), nprocs=2)
    expected = naive()
    for rank in range(2):
        logprobs, gradient = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(logprobs, expected[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradient, expected[1], rtol=1e-4, atol=1e-5)
