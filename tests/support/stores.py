"""Stores for tests."""

from __future__ import annotations

from dataclasses import replace

from lorarl_trainer.storage import RetryPolicy

QUICK = RetryPolicy(
    deadline_seconds=4.0,
    read_deadline_seconds=4.0,
    first_wait_seconds=0.01,
    longest_wait_seconds=0.05,
    request_seconds=1.0,
)
"""Retries as in life, but a person's patience scaled down to a test's: for what lasts longer than that."""
STEADY = replace(QUICK, deadline_seconds=30.0, read_deadline_seconds=30.0, request_seconds=10.0)
"""For everything else: no request is taken for lost because this machine was busy for a moment."""
