"""A probe: an adapter that changes what the model says, in every module or in those of one name.

A new adapter changes nothing, since its B is zero, and after its first updates it changes next to nothing. An engine
that does not apply it, or applies it wrongly, looks healthy. With a probe it does not: `guards.start`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lorarl_trainer.lora.config import Probe
from lorarl_trainer.lora.random_tensors import uniform
from lorarl_trainer.lora.targets import last_part

if TYPE_CHECKING:
    import torch

    from lorarl_trainer.lora.adapter import Adapter


def probe_adapter(probe: Probe, adapter: Adapter) -> Mapping[str, torch.Tensor]:
    """Return the probe's tensors in Hugging Face names: the same on every layout.

    A is uniform in +-1/sqrt(inputs), as in a new adapter; B is uniform in +-gain.
    """
    device, tensors = adapter.parameters[0].device, {}

    for target in adapter.targets:
        for name in target.hf_names:
            down, up = f"{name}.lora_A.weight", f"{name}.lora_B.weight"
            bound = 1 / math.sqrt(adapter.shapes[down][1])
            gain = probe.gain if probe.family in (None, last_part(name)) else 0.0
            # The parts of a fused `lora` adapter share one A.
            streams = adapter.config.owner(target.hf_names[0], "A"), adapter.config.owner(name, "B")
            tensors[down] = uniform(adapter.shapes[down], bound, f"A {streams[0]}", device)
            tensors[up] = uniform(adapter.shapes[up], gain, f"B {streams[1]}", device)
    return tensors
