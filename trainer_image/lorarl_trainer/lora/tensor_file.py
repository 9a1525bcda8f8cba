"""safetensors files in memory: tensors leave the GPU for their places in the file, and are read in place.

The bytes are those of safetensors' own `save`. That holds the interpreter's lock while it copies everything twice into
fresh memory: seconds for the state of a large adapter, in which neither training nor generation continues.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch

from lorarl_trainer.devices.transfer import HostBuffer, bytes_of

_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
"""The types that an adapter and its optimizer have, as the format calls them."""
_LENGTH_BYTES = 8
_ALIGNMENT = 8


def write_tensors(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> memoryview:
    """Return a safetensors file of tensors of one dtype on one device. The same tensors give the same bytes."""
    names = sorted(tensors)
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    ends = [0]
    for name in names:
        tensor = tensors[name]
        ends.append(ends[-1] + tensor.nbytes)
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": ends[-2:]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    begin = _LENGTH_BYTES + len(text)

    file = HostBuffer(begin + ends[-1], tensors.values())
    memoryview(file.bytes.numpy())[:begin] = len(text).to_bytes(_LENGTH_BYTES, "little") + text
    for name, start in zip(names, ends, strict=False):
        file.write(begin + start, tensors[name].detach())
    file.wait()
    return memoryview(file.bytes.numpy()).toreadonly()


def in_parts(tensors: Mapping[str, torch.Tensor], most_bytes: int) -> list[dict[str, torch.Tensor]]:
    """Deal tensors out to files of at most so many bytes, in the order of their names; a larger one stands alone."""
    parts: list[dict[str, torch.Tensor]] = [{}]
    size = 0
    for name in sorted(tensors):
        size += tensors[name].nbytes
        if parts[-1] and size > most_bytes:
            parts.append({})
            size = tensors[name].nbytes
        parts[-1][name] = tensors[name]
    return parts


def read_tensors(file: bytes | memoryview) -> dict[str, torch.Tensor]:
    """Return the tensors of such a file. They are the file's own bytes: do not write to them."""
    begin = _LENGTH_BYTES + int.from_bytes(file[:_LENGTH_BYTES], "little")
    header = json.loads(bytes(file[_LENGTH_BYTES:begin]))
    header.pop("__metadata__", None)
    content = bytes_of(file)[begin:]
    dtypes = {name: dtype for dtype, name in _DTYPES.items()}
    return {
        name: content[slice(*entry["data_offsets"])].view(dtypes[entry["dtype"]]).view(entry["shape"])
        for name, entry in header.items()
    }
