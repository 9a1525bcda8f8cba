"""Plans for GPUs of 24, 48 and 80 GB, kept on a larger one: the process may take no more than such a GPU has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.devices.cuda import CudaDevice
from lorarl_trainer.samples.agreement import AgreementLimits
from support.in_process import Colocated, samples_of, update_request

GB = 1_000_000_000
FREE = 0.97
"""Share of such a GPU that its driver calls free."""
PROMPTS, GROUP, PROMPT_TOKENS, RESPONSE_TOKENS = 64, 8, 512, 1024
CASES = [("0.5B", 24), ("1.5B", 24), ("1.5B", 48), ("7B", 48), ("7B", 80)]
"""Shapes and sizes. Nothing else is set: `tests/unit/trainer/planning/test_choice.py` has the plans."""


BALLAST = """
import sys, torch
leave = int(sys.argv[1])
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - leave, dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def cap(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Lets this process have so many GB, and its worker see such a GPU.

    Another process holds the rest. torch has its own limit, but counts a KV cache that was given up.
    """
    with ExitStack() as held:

        def to(gigabytes: int) -> None:
            free, total = torch.cuda.mem_get_info()
            gpu = Gpu(gigabytes * GB, int(FREE * gigabytes * GB), "a smaller GPU", (8, 9))
            if gpu.free > free:
                pytest.skip("this GPU is no larger")
            monkeypatch.setattr(CudaDevice, "memory", lambda _: gpu)
            command = [sys.executable, "-c", BALLAST, str(gpu.free - (total - free))]
            ballast = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            held.callback(ballast.communicate)  # the end of its input ends it
            assert ballast.stdout is not None
            assert ballast.stdout.readline() == "held\n"

        yield to
    torch.cuda.empty_cache()


@pytest.mark.long
@pytest.mark.parametrize(("name", "gigabytes"), CASES)
def test_a_step_takes_no_more_than_the_plan_says(
    name: str, gigabytes: int, cap: Callable[[int], None], shape: Callable[[str], Path], tmp_path: Path
) -> None:
    model = shape(name)
    cap(gigabytes)
    worker = Colocated(
        model,
        tmp_path,
        cluster__gpusPerNode=1,
        adapter__rank=32,
        algorithm__groupSize=GROUP,
        rollout__promptsPerStep=PROMPTS,
        rollout__maxPromptTokens=PROMPT_TOKENS,
        rollout__maxResponseTokens=RESPONSE_TOKENS,
    )
    stream = np.random.default_rng(0)
    groups = [stream.integers(4, 60_000, PROMPT_TOKENS).tolist() for _ in range(PROMPTS)]
    prompts = [prompt for prompt in groups for _ in range(GROUP)]
    for _ in range(2):
        worker.sync()
        samples = samples_of(prompts, worker.generate(prompts))
        worker.worker.update(
            update_request(samples, learning_rate=1e-5, limits=AgreementLimits(tolerance=float("inf")))
        )
    worker.close()
