"""How long Ray may take to say that a worker has ended."""

from __future__ import annotations

import pytest

from lorarl_trainer.workers.failures import NODE_LOSS_SECONDS, PEER_END_SECONDS, patience_with


@pytest.mark.parametrize(
    "words",
    [
        "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:38288",
        "RuntimeError: Read error: Connection reset by peer",
        "DistBackendError: NCCL error: remote process exited or there was a network error",
    ],
)
def test_ray_gets_longer_where_a_worker_says_that_another_has_ended(words: str) -> None:
    assert patience_with(RuntimeError(words)) == PEER_END_SECONDS > NODE_LOSS_SECONDS
    assert patience_with(RuntimeError("CUDA error: an illegal memory access")) == NODE_LOSS_SECONDS
