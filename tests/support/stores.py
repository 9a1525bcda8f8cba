"""Stores for tests."""

from __future__ import annotations

from lorarl_trainer.storage import RetryPolicy

QUICK = RetryPolicy(
    deadline_seconds=2.0,
    read_deadline_seconds=2.0,
    first_wait_seconds=0.01,
    longest_wait_seconds=0.05,
    request_seconds=0.4,
)
"""Retries as in life, but a person's patience scaled down to a test's."""
