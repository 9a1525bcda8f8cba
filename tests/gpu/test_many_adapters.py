"""Several adapters in one engine on a GPU, where vLLM's kernels for many adapters and its CUDA graphs compute them."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from support.in_process import Colocated, made, prompts, random_adapter, samples_of, wanted

MEAN_DIFFERENCE = 0.02
"""Between trainer and engine, in bf16, as in `test_colocated`."""
VERSIONS = range(1, 9)


@pytest.mark.parametrize("architecture", ["qwen3-gpu", "llama-gpu"])
def test_a_mixed_batch_is_what_the_trainer_makes_of_each_adapter(on_gpu, architecture: str) -> None:
    """So no request got another adapter: these differ by far more."""
    worker: Colocated = on_gpu(architecture, adapters=len(VERSIONS), adapter__rank=32, adapter__alpha=32)
    for version in VERSIONS:
        worker.load(random_adapter(worker, version, scale=0.02))
        worker.worker.sync(version, slot=version - 1)
    each = [(version, prompt) for version in VERSIONS for prompt in prompts(16)]
    random.Random(0).shuffle(each)
    begin = time.perf_counter()
    requests = [wanted([prompt], [n], adapter=version)[0] for n, (version, prompt) in enumerate(each)]
    together = made(worker.worker, requests)
    print(f"{len(each)} requests over {len(VERSIONS)} adapters took {time.perf_counter() - begin:.3f} s")
    assert [one.adapter_version for one in together] == [version for version, _ in each]

    def difference(held: int, version: int) -> float:
        worker.load(random_adapter(worker, held, scale=0.02))
        mine = [n for n, (of, _) in enumerate(each) if of == version]
        found = worker.trainer_logprobs(samples_of([each[n][1] for n in mine], [together[n] for n in mine]))
        return float(np.mean([np.abs(a - together[n].logprobs).mean() for a, n in zip(found, mine, strict=True)]))

    for version in VERSIONS:
        assert difference(version, version) < MEAN_DIFFERENCE
        assert difference(version % len(VERSIONS) + 1, version) > 3 * MEAN_DIFFERENCE, "the test would find another one"
