"""Brings a model's weights to the GPU before they are asked for.

Megatron-Bridge takes one tensor after the other: it waits for its pages, merges it with others on the host, and copies
the result from memory that is not page-locked, at 2.5 GB/s in all. Here a thread copies whole tensors with all cores
into page-locked memory, from which the bus takes them while the next ones are copied. The bridge merges on the GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch

from lorarl_trainer.threads import begin

_AHEAD_BYTES = 4 * 1024**3
"""How much may wait on the GPU to be asked for."""
_STAGE_BYTES, _STAGES = 64 * 1024**2, 2


class WeightsAhead:
    """The tensors of a model's files, on a GPU. Each can be taken once."""

    def __init__(
        self,
        names: Sequence[str],
        read: Callable[[str], torch.Tensor | None],
        device: torch.device,
        most_bytes: int = _AHEAD_BYTES,
    ) -> None:
        """Begin to bring them.

        Args:
            names: in the order in which they will be taken. Tensors that are passed over stay until `close`.
            read: returns a tensor of the host; None if it cannot, and then `take` does the same.
            device: where they go. The host itself is for tests.
            most_bytes: how much may wait there to be taken.
        """
        self._places = {name: place for place, name in enumerate(names)}
        self._read, self._device, self._most = read, device, most_bytes
        self._there: dict[str, torch.Tensor | None] = {}
        self._bytes, self._asked, self._brought = 0, -1, 0
        self._failed, self._closed = False, False
        self._changed = threading.Condition()
        self._working = begin(self._bring_all)

    def take(self, name: str) -> torch.Tensor | None:
        """Wait for a tensor and return it; None if it was taken before, was not named, or could not be read.

        What else goes wrong while it is brought is raised here.
        """
        place = self._places.get(name)
        if place is None:
            return None
        with self._changed:
            self._asked = max(self._asked, place)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._brought > place or self._failed)
            tensor = self._there.pop(name, None)
            if tensor is not None:
                self._bytes -= tensor.nbytes
                self._changed.notify_all()
        if self._failed:
            self._working.result()
        return tensor

    def close(self) -> None:
        """Stop, and forget what was not taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._working.exception()  # it waits; `take` has raised an error
        self._there.clear()

    def _bring_all(self) -> None:
        on_gpu = self._device.type == "cuda"
        try:
            # A thread begins with the first GPU, which may be another worker's.
            with torch.cuda.device(self._device) if on_gpu else nullcontext():
                self._bring(_ThroughStages(self._device) if on_gpu else torch.Tensor.clone)
        except BaseException:
            with self._changed:
                self._failed = True
                self._changed.notify_all()
            raise

    def _bring(self, copied: Callable[[torch.Tensor], torch.Tensor]) -> None:
        for place, name in enumerate(self._places):
            if not self._wait_for_room(place):
                return
            source = self._read(name)
            tensor = None if source is None else copied(source)
            with self._changed:
                self._there[name] = tensor
                self._bytes += 0 if tensor is None else tensor.nbytes
                self._brought = place + 1
                self._changed.notify_all()

    def _wait_for_room(self, place: int) -> bool:
        """Wait until a tensor may be brought; return False if no more shall be. One that is asked for always may."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._bytes < self._most or self._asked >= place)
            return not self._closed


class _ThroughStages:
    """Copies tensors to a GPU through two pieces of page-locked memory, on its own stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stages = [torch.empty(_STAGE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(_STAGES)]
        self._sent = [torch.cuda.Event() for _ in range(_STAGES)]
        self._stream, self._turn = torch.cuda.Stream(device), 0

    def __call__(self, source: torch.Tensor) -> torch.Tensor:
        """Return a copy, complete, in memory of the current stream."""
        tensor = torch.empty_like(source, device=self._device, memory_format=torch.contiguous_format)
        # Its memory may have been another tensor's, which the current stream still reads.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        pieces = source.contiguous().view(-1).view(torch.uint8).split(_STAGE_BYTES)
        for piece, place in zip(pieces, tensor.view(-1).view(torch.uint8).split(_STAGE_BYTES), strict=True):
            stage, sent = self._stages[self._turn][: len(piece)], self._sent[self._turn]
            sent.synchronize()
            stage.copy_(piece)
            with torch.cuda.stream(self._stream):
                place.copy_(stage, non_blocking=True)
                sent.record()
            self._turn = (self._turn + 1) % _STAGES
        self._stream.synchronize()
        return tensor
