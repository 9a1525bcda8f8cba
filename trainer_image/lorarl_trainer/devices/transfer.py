"""Between host and device: copies that neither side waits for, on a GPU through page-locked memory."""

from __future__ import annotations

import warnings
from collections.abc import Buffer, Iterable, Sequence

import numpy as np
import torch


def bytes_of(buffer: Buffer) -> torch.Tensor:
    """Return a buffer's bytes, [size] of uint8, in place: do not write to them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.frombuffer(buffer, dtype=torch.uint8)


def to_device(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """Bring an array to the device without waiting for what the device is doing."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def to_host(flat: torch.Tensor, stage_bytes: int = 64 << 20) -> torch.Tensor:
    """Bring a flat tensor to ordinary memory of the host.

    It comes through a little page-locked memory, which all cores empty. A plain copy of a GPU's tensor brings 0.8 GB/s
    where the pages are new (H200).
    """
    host = torch.empty(flat.shape, dtype=flat.dtype)
    step = max(1, stage_bytes // flat.itemsize)
    stage = torch.empty(min(step, len(flat)), dtype=flat.dtype, pin_memory=flat.is_cuda)
    for there, here in zip(flat.split(step), host.split(step), strict=True):
        here.copy_(stage[: len(there)].copy_(there))
    return host


def from_host(tensors: Sequence[torch.Tensor], device: torch.device, stage_bytes: int = 64 << 20) -> torch.Tensor:
    """Bring tensors of one type to a device, in turn in a flat one.

    They go through a little page-locked memory: one transfer each would take longer, and so would first a copy that is
    flat on the host.
    """
    flat = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=tensors[0].dtype, device=device)
    step = max(1, stage_bytes // flat.itemsize)
    stage = torch.empty(min(step, len(flat)), dtype=flat.dtype, pin_memory=flat.is_cuda)
    sent = filled = 0
    for tensor in tensors:
        rest = tensor.flatten()
        while len(rest):
            piece, rest = rest.tensor_split([len(stage) - filled])
            stage[filled : filled + len(piece)] = piece
            filled += len(piece)
            if filled == len(stage):
                flat[sent : sent + filled] = stage
                sent, filled = sent + filled, 0
    flat[sent:] = stage[:filled]
    return flat


class HostBuffer:
    """Bytes on the host that tensors are copied into.

    From a GPU they come at the speed of the bus, into page-locked memory, which torch keeps for the next buffer.

    Attributes:
        bytes: the buffer, [size] of uint8; whole after `wait`.
    """

    def __init__(self, size: int, sources: Iterable[torch.Tensor]) -> None:
        """Allocate `size` bytes for copies of `sources`."""
        self._from_gpu = any(tensor.is_cuda for tensor in sources)
        self.bytes = torch.empty(size, dtype=torch.uint8, pin_memory=self._from_gpu)

    def write(self, start: int, tensor: torch.Tensor) -> None:
        """Copy a tensor to the bytes from `start` on."""
        place = self.bytes[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        place.copy_(tensor, non_blocking=True)

    def wait(self) -> None:
        """Wait for the copies."""
        if self._from_gpu:
            torch.cuda.current_stream().synchronize()
