"""A model without memory for its parameters, until it is given those of the trainer.

vLLM has no door for this: its loaders make a model on the device, with memory, before `load_weights` sees it. On the
meta device the buffers would be missing, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lorarl_trainer.engine.vllm.binding import Place
from lorarl_trainer.engine.vllm.patches.replaced import replaced


@contextmanager
def unallocated_parameters() -> Iterator[None]:
    """Let every parameter that a module registers be one element, expanded to the parameter's shape.

    A parameter in the place of another one stays: it has the trainer's values, in the layout of vLLM's kernels.
    """
    register = torch.nn.Module.register_parameter

    def unallocated(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        is_new = module._parameters.get(name) is None
        register(module, name, parameter)
        if parameter is not None and is_new:
            parameter.data = parameter.data.new_empty(()).expand(parameter.shape)

    with (
        replaced(Place(torch.nn.Module, "register_parameter"), unallocated),
        # It would write random values, which some routers of vLLM's have until they are loaded.
        replaced(Place(torch.nn.Linear, "reset_parameters"), lambda _: None),
    ):
        yield
