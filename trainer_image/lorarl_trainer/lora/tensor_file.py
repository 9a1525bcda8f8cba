"""safetensors files in memory: tensors leave the GPU for their places in the file, and are read where they lie.

The bytes are those of safetensors' own `save`, which holds the interpreter's lock while it copies everything twice into fresh memory:
seconds for the state of a large adapter, in which neither training nor generation goes on.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from itertools import pairwise

import torch

_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
"""What an adapter and its optimizer consist of, as the format calls them."""
_LENGTH_BYTES = 8
_ALIGNMENT = 8


def write_tensors(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> memoryview:
    """Return a safetensors file of these tensors, all of one dtype, on one device. The same tensors give the same bytes.

    What comes from a GPU goes to page-locked memory, at the speed of the bus; torch keeps that memory for the next file.
    """
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

    on_gpu = any(tensor.is_cuda for tensor in tensors.values())
    file = torch.empty(begin + ends[-1], dtype=torch.uint8, pin_memory=on_gpu)
    memoryview(file.numpy())[:begin] = len(text).to_bytes(_LENGTH_BYTES, "little") + text
    for name, (start, end) in zip(names, pairwise(ends), strict=True):
        tensor = tensors[name].detach()
        file[begin + start : begin + end].view(tensor.dtype).view(tensor.shape).copy_(tensor, non_blocking=True)
    if on_gpu:
        torch.cuda.current_stream().synchronize()
    return memoryview(file.numpy()).toreadonly()


def in_parts(tensors: Mapping[str, torch.Tensor], most_bytes: int) -> list[dict[str, torch.Tensor]]:
    """Deal tensors out, in the order of their names, to files with at most so many bytes of them; a larger one has a file to itself."""
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
    """Return the tensors of such a file, whole as it was written. They are the file's own bytes: read them, and do not write."""
    begin = _LENGTH_BYTES + int.from_bytes(file[:_LENGTH_BYTES], "little")
    header = json.loads(bytes(file[_LENGTH_BYTES:begin]))
    header.pop("__metadata__", None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        content = torch.frombuffer(file, dtype=torch.uint8)[begin:]
    dtypes = {name: dtype for dtype, name in _DTYPES.items()}
    return {
        name: content[slice(*entry["data_offsets"])].view(dtypes[entry["dtype"]]).view(entry["shape"])
        for name, entry in header.items()
    }
