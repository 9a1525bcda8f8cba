"""A probe: an adapter that changes what the model says, in every module or in those of one name.

A new adapter changes nothing, since its B is zero, and after its first updates it changes next to nothing. An engine
that does not apply it, or applies it wrongly, looks healthy. With a probe it does not: `guards.start`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from lorarl_trainer.lora.config import Probe
from lorarl_trainer.lora.targets import last_part

if TYPE_CHECKING:
    from lorarl_trainer.protocols.adapter import Adapter


def probe_adapter(probe: Probe, adapter: Adapter) -> Mapping[str, torch.Tensor]:
    """Return the probe's tensors in Hugging Face names: the same on every layout.

    A is uniform in +-1/sqrt(inputs), as in a new adapter; B is uniform in +-gain.
    """
    device, tensors = adapter.parameters[0].device, {}

    def uniform(name: str, seed: str, bound: float) -> None:
        stream = torch.Generator(device).manual_seed(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:7]))
        values = torch.empty(adapter.shapes[name], device=device)
        tensors[name] = values.uniform_(-bound, bound, generator=stream)

    for target in adapter.targets:
        for name in target.hf_names:
            _, inputs = adapter.shapes[f"{name}.lora_A.weight"]
            # The parts of a fused `lora` adapter share one A.
            uniform(f"{name}.lora_A.weight", f"A {target.hf_names[0]}", 1 / math.sqrt(inputs))
            uniform(
                f"{name}.lora_B.weight", f"B {name}", probe.gain if probe.family in (None, last_part(name)) else 0.0
            )
    return tensors
