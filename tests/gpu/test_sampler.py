"""The sampler's kernels against PyTorch, and their tokens against the distribution that they are drawn from."""

from __future__ import annotations

import os

import pytest
import torch

from lorarl_trainer.engine.vllm.patches.sample_kernel import Ranks, draw

DEVICE = torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")


def draw_all(
    logits: torch.Tensor,
    temperature: float,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    ranks: Ranks | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    requests = torch.arange(len(logits) - 1, -1, -1, dtype=torch.int32)  # their rows are in no order
    arguments = (logits, requests, positions, seeds.flip(0))
    tokens, logprobs = draw(*(argument.to(DEVICE) for argument in arguments), temperature, ranks)
    return tokens.cpu(), logprobs.cpu()


@pytest.mark.parametrize(
    ("vocabulary", "kind"),
    [(151_936, torch.float32), (152_064, torch.bfloat16), (4096, torch.float32), (19, torch.float32)],
)
@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_log_probabilities_are_the_softmax(vocabulary: int, kind: torch.dtype, temperature: float) -> None:
    torch.manual_seed(0)
    logits = (4 * torch.randn(7, vocabulary + 5)).to(kind)[:, :vocabulary]  # rows may be apart
    tokens, logprobs = draw_all(logits, temperature, torch.arange(7) << 40, torch.arange(7))
    expected = torch.log_softmax(logits.double() / (temperature or 1.0), -1)
    torch.testing.assert_close(logprobs.double(), expected.gather(1, tokens[:, None])[:, 0], atol=2e-5, rtol=1e-5)
    if temperature == 0:
        assert torch.equal(tokens, logits.float().argmax(-1))


def test_tokens_are_drawn_by_their_probability() -> None:
    """Over four blocks of columns: probable and improbable tokens, and some that are impossible."""
    torch.manual_seed(0)
    rows, vocabulary = 40_000, 13_000
    logits = torch.full((vocabulary,), -9.0)
    logits[::1000] = torch.linspace(-3, 2, 13)
    logits[4096:9000] = float("-inf")
    tokens, _ = draw_all(
        logits.expand(rows, -1).contiguous(), 1.0, torch.arange(rows) * 7919 - 3, torch.full((rows,), 12)
    )
    probability = torch.softmax(logits.double(), -1)
    counted = torch.bincount(tokens, minlength=vocabulary)
    assert counted[4096:9000].sum() == 0
    for chosen in (torch.arange(0, vocabulary, 1000), torch.arange(0, vocabulary, 1000) + 1):
        likely = probability[chosen].sum()
        assert abs(counted[chosen].sum() / rows - likely) < 5 * (likely * (1 - likely) / rows).sqrt()
    often = probability > 1e-3
    z = (counted[often] - rows * probability[often]) / (rows * probability[often]).sqrt()
    assert z.abs().max() < 5 and 0.3 < z.pow(2).mean() < 2.5, z
    # The many improbable ones, two blocks of them, as often as all of them together should be.
    rare = probability[~often].sum()
    assert abs(counted[~often].sum() / rows - rare) < 5 * (rare * (1 - rare) / rows).sqrt()
    # And each of them as often as any other: so many different ones come from that many draws.
    kinds = int((~often & (probability > 0)).sum())
    different = kinds * (1 - torch.exp(-counted[~often].sum() / kinds))
    assert abs(len(torch.unique(tokens[~often[tokens]])) - different) < 0.03 * different


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    torch.manual_seed(0)
    logits = torch.randn(64, 5000)
    seeds, positions = torch.arange(64) + (3 << 35), torch.arange(64) % 5
    tokens, _ = draw_all(logits, 1.0, seeds, positions)
    half, _ = draw_all(logits[32:], 1.0, seeds[32:], positions[32:])
    assert torch.equal(tokens[32:], half)
    assert not torch.equal(tokens, draw_all(logits, 1.0, seeds + 1, positions)[0])
    assert not torch.equal(tokens, draw_all(logits, 1.0, seeds, positions + 1)[0])


def test_a_logit_that_is_no_number_is_told() -> None:
    logits = torch.randn(3, 5000)
    logits[1, 4321] = float("nan")
    tokens, logprobs = draw_all(logits, 1.0, torch.arange(3), torch.arange(3))
    assert torch.isnan(logprobs).tolist() == [False, True, False] and 0 <= tokens[1] < 5000


@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize(("vocabulary", "count"), [(8192, 2), (12_289, 2), (9000, 3)])
def test_ranks_with_parts_of_the_columns_draw_alike(vocabulary: int, count: int, temperature: float) -> None:
    """And what one draws that has all, if its blocks are the same. Else the blocks' edges decide with the seed."""
    torch.manual_seed(0)
    rows, width = 16, -(-vocabulary // count // 64) * 64
    logits, seeds = 4 * torch.randn(rows, vocabulary), torch.arange(rows) << 40
    expected = draw_all(logits, temperature, seeds, torch.arange(rows))
    found = draw_of_ranks(logits, temperature, seeds, torch.arange(rows), count, width)
    for tokens, logprobs in found:
        assert torch.equal(tokens, found[0][0]) and torch.equal(logprobs, found[0][1])
        softmax = torch.log_softmax(logits.double() / (temperature or 1.0), -1)
        torch.testing.assert_close(logprobs.double(), softmax.gather(1, tokens[:, None])[:, 0], atol=2e-5, rtol=1e-5)
    if temperature == 0 or width % 4096 == 0:
        assert torch.equal(found[0][0], expected[0])
    assert len({int(token) // width for token in found[0][0]}) == count, "every rank draws some"


class _NotSentError(Exception):
    """Another rank has not sent what this one needs."""


def draw_of_ranks(
    logits: torch.Tensor, temperature: float, seeds: torch.Tensor, positions: torch.Tensor, count: int, width: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What each rank draws. They run in turn, and again from the beginning when all have sent their parts."""
    sent: list[list[torch.Tensor]] = []  # in each exchange, by rank
    while True:
        parts, drawn = list[torch.Tensor](), []
        for rank in range(count):
            exchanges = iter(sent)

            def stack(part: torch.Tensor) -> torch.Tensor:
                if of_all := next(exchanges, None):  # noqa: B023  # called within this turn
                    return torch.stack(of_all)
                parts.append(part.clone())  # noqa: B023
                raise _NotSentError

            own = logits[:, rank * width : (rank + 1) * width]
            try:
                drawn.append(draw_all(own, temperature, seeds, positions, Ranks(rank, width, stack)))
            except _NotSentError:
                continue
        if drawn:
            return drawn
        sent.append(parts)
