"""One copy of the base model for trainer and engine: vLLM is handed the trainer's own tensors in place of files.

At equal tensor parallelism both keep the same layout of everything but q, k and v, which Megatron interleaves by key-value group;
of these vLLM gets a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

LOAD_FORMAT = "lorarl-trainer"
"""The name by which vLLM finds the loader."""

_QUERY_KEY_VALUE = ["q_proj", "k_proj", "v_proj"]


class SharedBase:
    """The trainer's base model, and what vLLM took of it.

    Attributes:
        shared_bytes: what both use the same storage for.
        copied_bytes: what vLLM has a copy of.
        refused: why vLLM loaded the model from its files after all; None where it did not.
    """

    def __init__(self, tensors: Mapping[frozenset[str], torch.Tensor]) -> None:
        """`tensors` are this rank's frozen parameters by the Hugging Face parameters that each is made of."""
        self._tensors = tensors
        self.shared_bytes = self.copied_bytes = 0
        self.refused: str | None = None

    def register(self) -> None:
        """Let LOAD_FORMAT mean these tensors for the engine that starts next."""
        from vllm.model_executor.model_loader import register_model_loader
        from vllm.model_executor.model_loader.base_loader import BaseModelLoader

        base = self

        class TrainerLoader(BaseModelLoader):
            """Gives a vLLM model the trainer's parameters."""

            def download_model(self, model_config: Any) -> None:
                """Nothing to download."""

            def load_model(self, *arguments: Any, **options: Any) -> torch.nn.Module:
                """Make the model without memory for its parameters, then give it the trainer's."""
                with _unallocated_parameters():
                    return super().load_model(*arguments, **options)

            def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
                """Replace every parameter."""
                base._give(model, model_config)

        register_model_loader(LOAD_FORMAT)(TrainerLoader)

    def _give(self, model: torch.nn.Module, model_config: Any) -> None:
        """Let vLLM's model use the trainer's tensors; where one has no counterpart, load all of them from the model's files."""
        counterparts = {name: self._counterpart(model, name, parameter) for name, parameter in model.named_parameters()}
        missing = [name for name, tensor in counterparts.items() if tensor is None]
        if missing:
            self.refused = f"the trainer has nothing in the layout of vLLM's {missing[0]}"
            _load_from_files(model, model_config)
            return
        own = {tensor.data_ptr() for tensor in self._tensors.values()}
        for name, parameter in model.named_parameters():
            tensor = counterparts[name]
            assert tensor is not None, "none is missing"
            parameter.data = tensor
            if tensor.data_ptr() in own:
                self.shared_bytes += tensor.nbytes
            else:
                self.copied_bytes += tensor.nbytes

    def _counterpart(self, model: torch.nn.Module, name: str, parameter: torch.Tensor) -> torch.Tensor | None:
        """Return the trainer's tensor for a parameter of vLLM's, in vLLM's layout."""
        *parents, module, kind = name.split(".")
        parts = getattr(model, "packed_modules_mapping", {}).get(module, [module])
        tensor = self._tensors.get(frozenset(".".join([*parents, part, kind]) for part in parts))
        if tensor is None or tensor.dtype != parameter.dtype or tensor.numel() != parameter.numel():
            return None
        if parts == _QUERY_KEY_VALUE:
            layer = model.get_submodule(".".join([*parents, module]))
            tensor = query_key_value(tensor, layer.num_heads, layer.num_kv_heads, layer.head_size)
        return tensor if tensor.shape == parameter.shape else None


def query_key_value(interleaved: torch.Tensor, heads: int, groups: int, head_size: int) -> torch.Tensor:
    """Return [q; k; v] of what Megatron has as [q's of group 0; k; v; q's of group 1; k; v; ...], a copy, shape [rows, ...]."""
    inner = interleaved.shape[1:]
    by_group = interleaved.view(groups, heads // groups + 2, head_size, *inner)
    parts = by_group[:, :-2], by_group[:, -2:-1], by_group[:, -1:]
    return torch.cat([part.reshape(-1, *inner) for part in parts])


@contextmanager
def _unallocated_parameters() -> Iterator[None]:
    """Let every parameter that a module registers be one element, seen in the parameter's shape."""
    register = torch.nn.Module.register_parameter

    def unallocated(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is not None:
            parameter.data = parameter.data.new_empty(()).expand(parameter.shape)

    torch.nn.Module.register_parameter = unallocated
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register


def _load_from_files(model: torch.nn.Module, model_config: Any) -> None:
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader

    for parameter in model.parameters():
        parameter.data = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
    get_model_loader(LoadConfig()).load_weights(model, model_config)
