"""Faults that other systems ran with for weeks, in a real run: each is named before an update uses its samples.

They are injected before the first step, and after step 2 into what step 3 hands over, at a learning rate at which an
adapter changes next to nothing. `tests/gpu/test_silent_faults.py` has the same in bf16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from lorarl_trainer.errors import LorarlError, PolicyDriftError
from lorarl_trainer.lora.config import Probe
from support import silent_faults
from support.in_process import Colocated
from support.silent_faults import FAULTS, SLOW, train_with


@pytest.mark.parametrize(("inject", "error", "message"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS])
@pytest.mark.parametrize("after", [0, 2], ids=["start", "step-3"])
def test_a_fault_is_named_before_an_update_uses_it(
    colocated, inject: Callable[[Colocated], None], error: type[LorarlError], message: str, after: int
) -> None:
    made: list[int] = []
    with pytest.raises(error, match=message):
        train_with(colocated(**SLOW), inject, after, made)
    # No block was cached under a name without its version before step 3, so it is step 4 that finds one.
    last = 3 if after and inject is silent_faults.old_prefixes else after
    assert made == list(range(1, last + 1)), "no step ran on with the fault"


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_a_scale_that_only_the_trainer_has_is_named(colocated, architecture: str) -> None:
    made: list[int] = []
    with pytest.raises(PolicyDriftError, match=r"do not apply the same adapter.* differ in .*q_proj.*down_proj"):
        train_with(colocated(architecture, **SLOW), silent_faults.trainer_scale, 0, made)
    assert not made


@pytest.mark.parametrize(("layer", "families"), [("o_proj", "o_proj"), ("qkv_proj", "q_proj, k_proj, v_proj")])
def test_layers_that_ignore_the_adapter_are_named(colocated, layer: str, families: str) -> None:
    with pytest.raises(PolicyDriftError, match=rf"do not apply the same adapter.* They differ in {families}\. No step"):
        train_with(colocated(**SLOW), partial(silent_faults.engine_ignores, layer=layer), 0, [])


def test_a_healthy_run_says_that_it_is(colocated) -> None:
    made: list[int] = []
    train_with(colocated(**SLOW), lambda worker: None, 0, made)
    assert made == [1, 2, 3, 4]


def test_the_probe_leaves_no_trace(colocated) -> None:
    worker: Colocated = colocated()
    worker.randomise()
    before = worker.export()
    worker.worker.hold_probe(Probe(0.1))
    worker.sync()
    assert any(not torch.equal(tensor, before[name]) for name, tensor in worker.export().items())
    worker.worker.hold_probe(Probe(0.2, "q_proj"))
    held = worker.export()
    assert {name for name, tensor in held.items() if "lora_B" in name and tensor.any()} == {
        name for name in held if "q_proj.lora_B" in name
    }
    worker.worker.hold_probe(None)
    assert all(torch.equal(tensor, before[name]) for name, tensor in worker.export().items())
