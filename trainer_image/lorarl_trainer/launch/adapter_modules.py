"""Compares the tensors of an adapter that a job names with the modules that the job trains. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO

import numpy as np

from lorarl_api.v1alpha1 import AdapterSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.experts import expert_layers, is_expert, of_all_experts, outer_matrix
from lorarl_trainer.lora.files import INIT_FROM, MAGNITUDE, WEIGHTS_FILE
from lorarl_trainer.lora.initial import InitialAdapter
from lorarl_trainer.lora.targets import last_parts, shortest_names
from lorarl_trainer.lora.tensor_names import by_own_name, misfit
from lorarl_trainer.models.model_sizes import LinearSize, ModelSizes
from lorarl_trainer.storage.tensor_header import Stored, read_header

PICKLE_FILE = "adapter_model.bin"
SAFE = f"Convert {PICKLE_FILE} with PEFT's save_pretrained, whose safe_serialization is on by default."
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}
"""What safetensors calls floating-point numbers. NumPy has no bfloat16."""
_OTHER_FILES = (
    (b"version https://git-lfs", "It is a pointer of git lfs. Fetch the file with git lfs pull."),
    (b"PK\x03\x04", f"It is what torch.save writes. {SAFE}"),
    (b"\x80", f"It is what torch.save writes. {SAFE}"),
)
_MOST_NAMES = 64
"""The longest list that `spec.adapter.targetModules` may be."""


@dataclass(frozen=True)
class _Tensor:
    """A tensor of the file: the name that it has there, what the file says of it, and its content."""

    stored_name: str
    stored: Stored
    data: memoryview

    @property
    def value(self) -> tuple[str, tuple[int, ...], memoryview]:
        """Type, shape and content, which two equal tensors have in common."""
        return self.stored.dtype, self.stored.shape, self.data


type _Tensors = Mapping[str, _Tensor]
"""By own names, see `lora.tensor_names`."""


def require_fitting_modules(
    initial: InitialAdapter, model: ModelSizes, adapter: AdapterSpec, field: str = INIT_FROM
) -> None:
    """Check that an adapter has exactly the tensors of the modules that the job trains, in the base model's shapes.

    Args:
        initial: the adapter.
        model: sizes of the base model.
        adapter: `spec.adapter`.
        field: the path of its URI in the manifest, for errors.

    Raises:
        InputError: modules or shapes differ, a value is not finite, or the file is not whole.
    """
    tensors = _tensors(initial.weights, field)
    wanted = model.adapted(adapter)
    _check_expert_rank(initial, model, adapter, field)
    shapes = dict(_shapes(initial, wanted, adapter))
    unused = [
        one.stored_name for name, one in tensors.items() if name not in shapes and not _is_empty_expert(name, tensors)
    ]
    missing = [name for name in shapes if name not in tensors]
    if error := misfit(field, unused, missing, "the training", _hint(tensors, model, adapter, wanted)):
        raise error
    for name, shape in shapes.items():
        if (found := tensors[name].stored.shape) != shape:
            got = f"an adapter whose {name} has the shape {list(found)}"
            raise InputError(field, got, f"{list(shape)}", "Use an adapter of this base model.")
    _check_shared(tensors, model, adapter, wanted, field)
    for name, one in tensors.items():
        dtype = one.stored.dtype
        if not _is_finite(dtype, one.data):
            known = dtype in _DTYPES
            got = f"an adapter whose {name} has a value that is not finite" if known else f"{name} in {dtype}"
            raise InputError(field, got, "finite floating-point numbers", "Use an earlier checkpoint of it.")


def _shapes(
    initial: InitialAdapter, wanted: Iterable[LinearSize], adapter: AdapterSpec
) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Yield the tensors that an adapter of these layers has, with their shapes."""
    for linear in wanted:
        rank = initial.expert_rank if initial.expert_rank and is_expert(linear.name) else initial.rank
        yield f"{linear.name}.lora_A.weight", (rank, linear.inputs)
        yield f"{linear.name}.lora_B.weight", (linear.outputs, rank)
        if adapter.dora:
            yield f"{linear.name}.{MAGNITUDE}", (linear.outputs,)


def _tensors(weights: bytes, field: str) -> _Tensors:
    try:
        header = read_header(BytesIO(weights), len(weights))
    except ValueError as error:
        got = f"an adapter whose {WEIGHTS_FILE} is not a whole safetensors file ({error})"
        hint = next((hint for mark, hint in _OTHER_FILES if weights.startswith(mark)), "Copy the adapter again.")
        raise InputError(field, got, "a PEFT LoRA adapter", hint) from error
    content = memoryview(weights)
    return {
        own: _Tensor(stored, header[stored], content[header[stored].begin : header[stored].end])
        for own, stored in by_own_name(header, field).items()
    }


def _hint(tensors: _Tensors, model: ModelSizes, adapter: AdapterSpec, wanted: Collection[LinearSize]) -> str:
    """Return what makes the adapter and the job fit; it has been tried."""
    has = {_layer(name) for name in tensors if not _is_empty_expert(name, tensors)}
    linears = {linear.name for linear in model.linears}
    if has == {linear.name for linear in wanted}:
        return "Save the adapter again, whole and as plain LoRA."
    if not has & linears:
        return "Use an adapter of this base model. If it is one, give its tensors the names that PEFT writes."
    if never := sorted(has - linears):  # such as a vision tower's, which may have the names of layers that are trained
        trained = set(last_parts(linears))
        names = ", ".join([name for name in last_parts(never) if name not in trained] or [f"layers such as {never[0]}"])
        return f"No job trains {names}. Apply the adapter with lorarl merge, and train the merged model without it."
    return _fitting_settings(has, linears, model, adapter) or "Use another adapter."


def _fitting_settings(has: set[str], linears: set[str], model: ModelSizes, adapter: AdapterSpec) -> str | None:
    """Return settings of `spec.adapter` with which the job trains exactly these layers."""
    names = shortest_names(has, linears)
    if len(names) > _MOST_NAMES:
        return None
    modules = {"target_modules": names, "exclude_modules": []}
    for kind in dict.fromkeys((adapter.type, "canonical_lora")):
        try:
            trained = model.adapted(adapter.model_copy(update={**modules, "type": kind}))
        except InputError:  # a part of a layer for which this type has one adapter
            continue
        if {linear.name for linear in trained} == has:
            more = "" if kind == adapter.type else f" and spec.adapter.type: {kind}"
            without = ", and remove spec.adapter.excludeModules" if adapter.exclude_modules else ""
            return f"Set spec.adapter.targetModules: [{', '.join(names)}]{more}{without}, or use another adapter."
    return None


def _layer(name: str) -> str:
    """Return the layer of a tensor: of an adapter's matrix, or of a weight of the base that was saved with it."""
    return name.partition(".lora_")[0] if ".lora_" in name else name.rpartition(".")[0]


def _check_expert_rank(initial: InitialAdapter, model: ModelSizes, adapter: AdapterSpec, field: str) -> None:
    most = model.expert_rank(adapter)
    if initial.expert_rank and most and initial.expert_rank > most:
        raise InputError(
            field,
            f"an adapter with rank {initial.expert_rank} on experts",
            f"at most {most}, the job's",
            f"Set spec.adapter.expertRank: {initial.expert_rank}.",
        )


def _check_shared(
    tensors: _Tensors, model: ModelSizes, adapter: AdapterSpec, wanted: Iterable[LinearSize], field: str
) -> None:
    """Require that layers which share a matrix in the training have equal ones."""
    if adapter.type == "lora":
        parts = {f"{name}.lora_A.weight": target.name for target in model.targets(adapter) for name in target.hf_names}
        expected, other = "one A for the parts of a fused layer, as in spec.adapter.type: lora", "type: canonical_lora"
        _require_equal(tensors, parts, field, expected, f"Set spec.adapter.{other}.")
    if adapter.shares_outer:
        outer = {
            f"{layer}.lora_{outer_matrix(layer)}.weight": of_all_experts(layer)
            for layer in expert_layers(linear.name for linear in wanted)
        }
        expected = "one such matrix for all experts of a layer, as in spec.adapter.experts: sharedOuter"
        hint = "Set spec.adapter.experts: perExpert, or use an adapter of a training with sharedOuter."
        _require_equal(tensors, outer, field, expected, hint)


def _require_equal(tensors: _Tensors, owners: Mapping[str, str], field: str, expected: str, hint: str) -> None:
    """Require that tensors with the same owner are equal."""
    first: dict[str, str] = {}
    for name, owner in owners.items():
        alike = first.setdefault(owner, name)
        if tensors[name].value != tensors[alike].value:
            raise InputError(field, f"an adapter whose {name} is not {alike}", expected, hint)


def _is_empty_expert(name: str, tensors: _Tensors) -> bool:
    """Return whether a tensor is of an expert's layer without a part in the training: its A and B are zeros."""
    layer = _layer(name)
    matrices = [tensors[part].data for part in _matrices(layer) if part in tensors]
    return is_expert(layer) and not any(np.frombuffer(data, np.uint8).any() for data in matrices)


def _matrices(layer: str) -> Sequence[str]:
    return f"{layer}.lora_A.weight", f"{layer}.lora_B.weight"


def _is_finite(dtype: str, data: memoryview) -> bool:
    if dtype not in _DTYPES:
        return False
    values = np.frombuffer(data, _DTYPES[dtype])
    return bool(((values & 0x7F80) != 0x7F80).all() if dtype == "BF16" else np.isfinite(values).all())
