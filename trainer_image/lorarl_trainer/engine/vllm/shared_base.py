"""One copy of the base model for trainer and engine: vLLM gets the trainer's own tensors in place of files.

With equal tensor parallelism both have the same layout of everything but q, k and v: where a trainer interleaves them
by key-value group, vLLM gets a copy of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lorarl_trainer.engine.vllm import model_slices, parts
from lorarl_trainer.engine.vllm.names import BaseModel
from lorarl_trainer.engine.vllm.patches.parameters import unallocated_parameters
from lorarl_trainer.models.layer_kinds import LAYER_KINDS
from lorarl_trainer.models.layer_tensors import ROUTER
from lorarl_trainer.planning.execution import PlanError
from lorarl_trainer.protocols.shared_base import SharesBase

LOAD_FORMAT = "lorarl-trainer"
"""The name by which vLLM finds the loader."""

_OF_EXPERTS = {
    "w13_weight": (("gate_proj", "up_proj"), ("w1", "w3")),
    "w2_weight": (("down_proj",), ("w2",)),
    "w13_bias": (),
    "w2_bias": (),
}
"""vLLM's tensors of all experts of a layer, and what they consist of, by the names of each family."""
_WHOLE = {"w13_weight": "gate_up_proj", "w2_weight": "down_proj"}
"""What files call them that have them as they are, if not by vLLM's name."""
_MADE_OF = {name: how for kind in LAYER_KINDS.values() for name, how in kind.made_of.items()}
_QUERY_KEY_VALUE = ["q_proj", "k_proj", "v_proj"]


class SharedBase:
    """The trainer's base model, and what vLLM took of it.

    Attributes:
        shared_bytes: what both use the same storage for.
        copied_bytes: what vLLM has a copy of.
    """

    def __init__(self, trainer: SharesBase) -> None:
        """Take what a trainer lends (collective)."""
        self._tensors, self._qkv_by_group = trainer.base_in_hf_names(), trainer.qkv_by_group
        self.shared_bytes = self.copied_bytes = 0

    def register(self) -> None:
        """Let LOAD_FORMAT mean these tensors for the engine that starts next."""
        shared, loader = self, BaseModel.BaseModelLoader

        class TrainerLoader(loader):  # type: ignore[valid-type, misc]  # vLLM's, known when it has been set up
            """Gives a vLLM model the trainer's parameters."""

            def download_model(self, model_config: Any) -> None:
                """Do nothing: there is nothing to download."""

            def load_model(self, *arguments: Any, **options: Any) -> torch.nn.Module:
                """Make the model without memory for its parameters, then give it the trainer's."""
                with unallocated_parameters():
                    return super().load_model(*arguments, **options)

            def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
                """Replace every parameter."""
                shared._give(model)

        BaseModel.register_model_loader(LOAD_FORMAT)(TrainerLoader)

    def _give(self, model: torch.nn.Module) -> None:
        """Let vLLM's model use the trainer's tensors.

        Raises:
            PlanError: one has no counterpart. The memory has no place for a second base model.
        """
        own = {tensor.data_ptr() for tensor in self._tensors.values()}
        self._tensors = {**_in_vllm_s_names(model, self._tensors), **self._tensors}
        views = _views_of_parameters(model)
        for name, parameter in model.named_parameters():
            tensor = self._counterpart(model, name, parameter)
            if tensor is None:
                raise PlanError(
                    "vLLM was planned to share the trainer's base model, but the trainer has nothing in the layout of "
                    f"vLLM's {name}; please report this"
                )
            parameter.data = tensor
            if tensor.data_ptr() in own:
                self.shared_bytes += tensor.nbytes
            else:
                self.copied_bytes += tensor.nbytes
        for name, buffer in model.named_buffers():
            if (tensor := self._tensors.get(frozenset([name]))) is not None:
                buffer.copy_(tensor)  # a number in a model's files that is not a parameter
        for module, name, parameter in views:
            setattr(module, name, parameter.data.view(getattr(module, name).shape))

    def _counterpart(self, model: torch.nn.Module, name: str, parameter: torch.Tensor) -> torch.Tensor | None:
        """Return the trainer's tensor for a parameter of vLLM's, in vLLM's layout."""
        *parents, module, kind = name.split(".")
        fused = getattr(model, "packed_modules_mapping", {}).get(module, [module])
        if made_of := _MADE_OF.get(kind):
            source, make = made_of
            tensor = self._tensors.get(frozenset([".".join([*parents, module, source])]))
            return None if tensor is None else make(tensor)
        if (by_family := _OF_EXPERTS.get(kind)) is not None:
            layer_name, experts = ".".join(parents[: parents.index("experts") + 1]), range(len(parameter))
            named = [[f"{layer_name}.{expert}.{one}.weight" for expert in experts for one in p] for p in by_family]
            named += [[f"{layer_name}.{one}"] for one in (kind, _WHOLE.get(kind, kind))]
        else:
            named = [[".".join([*parents, one, kind]) for one in fused]]
        tensor = next((found for names in named if (found := self._tensors.get(frozenset(names))) is not None), None)
        if tensor is None or tensor.numel() != parameter.numel():
            return None
        if tensor.dtype != parameter.dtype and (parameter.dim() == 1 or module == ROUTER):
            tensor = tensor.to(parameter.dtype)  # vLLM has the decay of a delta net in fp32, and some routers
        if tensor.dtype != parameter.dtype:
            return None
        if fused == _QUERY_KEY_VALUE and self._qkv_by_group:
            layer: model_slices.QKVParallelLinear = model.get_submodule(".".join([*parents, module]))
            tensor = query_key_value(tensor, layer.num_heads, layer.num_kv_heads, layer.head_size)
        return tensor if tensor.shape == parameter.shape else None


def _views_of_parameters(model: torch.nn.Module) -> list[tuple[torch.nn.Module, str, torch.Tensor]]:
    """Return the buffers that are another form of a parameter: their modules, their names, and that parameter."""
    by_place = {parameter.untyped_storage().data_ptr(): parameter for parameter in model.parameters()}
    return [
        (module, name, by_place[place])
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if buffer.numel() and (place := buffer.untyped_storage().data_ptr()) in by_place
    ]


def _in_vllm_s_names(
    model: torch.nn.Module, tensors: Mapping[frozenset[str], torch.Tensor]
) -> dict[frozenset[str], torch.Tensor]:
    """Return tensors by the names that vLLM's model gives those of a Hugging Face model, if it says so."""
    mapper = parts.name_mapper(model)
    return {} if mapper is None else {frozenset(mapper.apply_list(list(names))): t for names, t in tensors.items()}


def query_key_value(interleaved: torch.Tensor, heads: int, groups: int, head_size: int) -> torch.Tensor:
    """Return [q; k; v] as a copy, of shape [rows, ...].

    `interleaved`: as Megatron has it, [q's of group 0; k; v; q's of group 1; k; v; ...].
    """
    inner = interleaved.shape[1:]
    by_group = interleaved.view(groups, heads // groups + 2, head_size, *inner)
    projections = by_group[:, :-2], by_group[:, -2:-1], by_group[:, -1:]
    return torch.cat([projection.reshape(-1, *inner) for projection in projections])
