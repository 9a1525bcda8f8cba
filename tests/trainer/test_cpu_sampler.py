"""The sampler on a CPU: it draws what the probabilities say, and a request's seed alone decides its tokens."""

from __future__ import annotations

import torch

from lorarl_trainer.engine.vllm.patches.cpu_sampler import SeededDraws, draw

ROWS = 20_000


def test_tokens_come_as_often_as_they_are_probable() -> None:
    logprobs = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05]).log()
    uniform = torch.rand(ROWS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(draw(logprobs.expand(ROWS, -1), uniform), minlength=5)
    assert counts[1] == 0
    assert torch.allclose(counts / ROWS, logprobs.exp(), atol=0.015)


def test_the_ends_of_the_range_are_possible_tokens() -> None:
    logprobs = torch.tensor([[0.0, 0.7, 0.3, 0.0]]).log().expand(2, -1)
    below_one = torch.nextafter(torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64))
    assert draw(logprobs, torch.stack([torch.zeros((), dtype=torch.float64), below_one])).tolist() == [1, 2]


def test_a_number_belongs_to_its_place() -> None:
    """Also after vLLM has dropped a token, and where a request continues."""
    stream = torch.Generator().manual_seed(7)
    numbers = [torch.rand(1, dtype=torch.float64, generator=stream).item() for _ in range(40)]
    draws = SeededDraws(7, 0)
    assert [draws.draw().item() for _ in range(20)] == numbers[:20]
    draws.set_offset(draws.get_offset() - 4)  # as GPUModelRunner._bookkeeping_sync does
    assert [draws.draw().item() for _ in range(3)] == numbers[19:22]
    assert [SeededDraws(7, place).draw().item() for place in range(40)] == numbers


def test_a_requests_seed_decides_its_tokens_whatever_else_is_in_the_batch(colocated) -> None:
    worker = colocated()
    worker.sync()
    prompts = [[5, 6, 7], [8, 9], [5, 6, 7], [11]]
    together = worker.generate(prompts, [3, 4, 5, 6])
    (alone,) = worker.generate([prompts[2]], [5])
    assert alone.tokens.tolist() == together[2].tokens.tolist()
    assert together[0].tokens.tolist() != together[2].tokens.tolist()
