"""Ways to break a started worker without a word: what other systems' users lost weeks to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from lorarl_trainer.backends.megatron.fused_layer import FusedLayer
from lorarl_trainer.errors import LorarlError, StaleAdapterError, WorkerError

from .in_process import Colocated
from .loop_runs import rows, run_in_process


def not_delivered(worker: Colocated) -> None:
    """The new adapter does not arrive, but vLLM takes its name."""
    worker.rollouts.deliveries[0].sync.push = worker.engine.slot.rename  # type: ignore[method-assign]


def bound_to_nothing(worker: Colocated) -> None:
    """The adapter arrives, and is then bound to no module."""

    def unbind() -> None:
        for buffer in worker.engine.slot.buffers():
            buffer.zero_()

    _after_push(worker, unbind)


def one_version_late(worker: Colocated) -> None:
    """Each sync brings the values that were there at the sync before."""
    push, parameters = worker.rollouts.deliveries[0].sync.push, list(worker.parameters.values())
    late = [parameter.detach().clone() for parameter in parameters]

    def push_late(version: int) -> None:
        nonlocal late
        newest = [parameter.detach().clone() for parameter in parameters]
        _set(parameters, late)
        push(version)
        _set(parameters, newest)
        late = newest

    worker.rollouts.deliveries[0].sync.push = push_late  # type: ignore[method-assign]


def old_prefixes(worker: Colocated) -> None:
    """The prefix cache does not tell adapter versions apart."""
    worker.engine._core.request_block_hasher = _without_adapters(worker.engine._core.request_block_hasher)


def engine_scale(worker: Colocated) -> None:
    """The engine's B is scaled by twice the job's alpha / rank."""
    copies = worker.rollouts.deliveries[0].sync.plan.copies  # type: ignore[attr-defined]
    _copy_instead(worker, [replace(c, scale=2 * c.scale) if c.name.endswith("lora_B.weight") else c for c in copies])


def shard_missing(worker: Colocated) -> None:
    """The second half of every B does not arrive, as if a tensor-parallel rank were left out."""

    def lose() -> None:
        for buffer in worker.engine.slot.buffers():
            buffer[buffer.shape[0] // 2 :] = 0

    _after_push(worker, lose)


def shard_twice(worker: Colocated) -> None:
    """The first half of every B is added twice, as if two tensor-parallel ranks brought it."""

    def add() -> None:
        for buffer in worker.engine.slot.buffers():
            buffer[: buffer.shape[0] // 2] *= 2

    _after_push(worker, add)


def swapped(worker: Colocated) -> None:
    """In one layer, v_proj gets the A of q_proj, and q_proj that of v_proj."""
    copies = worker.rollouts.deliveries[0].sync.plan.copies  # type: ignore[attr-defined]
    q, v = (
        next(c for c in copies if c.name.endswith(f"layers.0.self_attn.{name}_proj.lora_A.weight")) for name in "qv"
    )
    exchanged = {q.name: replace(q, source=v.source), v.name: replace(v, source=q.source)}
    _copy_instead(worker, [exchanged.get(c.name, c) for c in copies])


def on_another_device(worker: Colocated) -> None:
    """The job asks for a GPU; the model is on the CPU."""
    if worker.spec.on_gpu:
        worker.worker.backend.model.module.cpu()
    else:
        worker.worker.backend._device = _Named(worker.worker.backend._device, "cuda")


def trainer_scale(worker: Colocated) -> None:
    """The trainer's adapter is scaled by twice the job's alpha / rank."""
    for module in worker.worker.backend.model.module.modules():
        if hasattr(module, "alpha") and hasattr(module, "linear_out"):
            module.alpha *= 2
        fused = getattr(getattr(module, "forward", None), "__self__", None)
        for linear in fused.linears if isinstance(fused, FusedLayer) else ():
            linear.scale *= 2


def engine_ignores(worker: Colocated, layer: str) -> None:
    """vLLM holds the adapter, but one kind of layer does not apply it."""
    for name, module in worker.engine.slot._manager.modules.items():
        if name.endswith(layer):
            module.apply = _base_alone(module)  # type: ignore[method-assign]


SLOW = {"trainer__learningRate": 1e-5, "trainer__steps": 4, "checkpoint__every": 100, "rollout__maxPromptTokens": 160}
PROMPTS = rows(4, prompt_length=140)
"""Longer than a block of the prefix cache, and the same ones at every step."""

NOT_DELIVERED = r"version \d+ did not reach vLLM: "
FAULTS: list[tuple[Callable[[Colocated], None], type[LorarlError], str]] = [
    (not_delivered, StaleAdapterError, NOT_DELIVERED + "it(s buffers are empty| still holds version 3)"),
    (bound_to_nothing, StaleAdapterError, NOT_DELIVERED + "its buffers are empty.* bound to no module"),
    (one_version_late, StaleAdapterError, NOT_DELIVERED + r".*\d+ of \d+ blocks differ, in .*q_proj"),
    (old_prefixes, StaleAdapterError, r"gave adapter version \d+ keys and values that version \d+ comp"),
    (engine_scale, StaleAdapterError, NOT_DELIVERED + "its B is 2 times what it should be, so its scale"),
    (shard_missing, StaleAdapterError, NOT_DELIVERED + r"\d+ of \d+ blocks differ, in down_proj"),
    (shard_twice, StaleAdapterError, NOT_DELIVERED + r"\d+ of \d+ blocks differ, in down_proj"),
    (swapped, StaleAdapterError, NOT_DELIVERED + r"\d+ of \d+ blocks differ, in q_proj, v_proj"),
    (on_another_device, WorkerError, "but the job asks for cuda .*No update was made with them"),
]


def train_with(worker: Colocated, inject: Callable[[Colocated], None], after: int, made: list[int]) -> None:
    """Train; inject the fault before the first step (0), or when a later one is done. Put the steps into `made`."""

    def after_step(step: int) -> None:
        made.append(step)
        if step == after:
            inject(worker)

    if after == 0:
        inject(worker)
    asyncio.run(run_in_process(worker, train_rows=PROMPTS, after_step=after_step))


class _Named:
    """A device by another name."""

    def __init__(self, device: Any, name: str) -> None:
        self._device, self.name = device, name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._device, attribute)


def _after_push(worker: Colocated, fault: Callable[[], None]) -> None:
    push = worker.rollouts.deliveries[0].sync.push

    def faulty(version: int) -> None:
        push(version)
        fault()

    worker.rollouts.deliveries[0].sync.push = faulty  # type: ignore[method-assign]


def _copy_instead(worker: Colocated, copies: list[Any]) -> None:
    from lorarl_trainer.engine.sync.copy_plan import CopyPlan

    worker.rollouts.deliveries[0].sync.plan = CopyPlan(copies)  # type: ignore[attr-defined]


@torch.no_grad()
def _set(parameters: list[torch.nn.Parameter], values: list[torch.Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


def _without_adapters(hasher: Any) -> Any:
    def hashed(request: Any) -> Any:
        adapter, request.lora_request = request.lora_request, None
        try:
            return hasher(request)
        finally:
            request.lora_request = adapter

    return hashed


def _base_alone(module: Any) -> Any:
    def apply(x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        output: torch.Tensor = module._get_quant_method().apply(module.base_layer, x, bias)
        return output

    return apply
