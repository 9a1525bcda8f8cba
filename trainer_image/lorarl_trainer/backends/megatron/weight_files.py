"""Reads a model's files for Megatron-Bridge, which opens one for each tensor and searches all names for each name.

That takes time with the square of the number of tensors: two and a half minutes for the 9,216 matrices of a mixture of
24 layers with 128 experts. Here a file stays open, a name is looked up, and a GPU gets its tensors ahead of time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch

from lorarl_trainer.backends.megatron.weights_ahead import WeightsAhead

_FILES = 4
"""Files that are open at a time. A bridge loads layer by layer, and a layer is in one or two."""


class _Names(list[str]):
    """A list of names that knows what is in it."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self._known = frozenset(self)

    def __contains__(self, name: object) -> bool:
        return name in self._known


class WeightFiles:
    """A model's files, a few of which stay open, and what was brought from them ahead of time."""

    def __init__(self, source: Any) -> None:
        """`source` knows the folder, and each tensor's file."""
        self._source = source
        self._ahead: WeightsAhead | None = None
        self._opened = lru_cache(_FILES)(_open)

    def bring_ahead(self, names: Sequence[str], device: torch.device) -> None:
        """Begin to bring tensors to a GPU, in the order in which the bridge will read them."""
        self._ahead = WeightsAhead(names, self._read, device)

    def find(self, key: str) -> torch.Tensor | None:
        """Return a tensor, where it is; None if it is not where the index says."""
        brought = None if self._ahead is None else self._ahead.take(key)
        return self._read(key) if brought is None else brought

    def _read(self, key: str) -> torch.Tensor | None:
        """Return a tensor in the file's own pages."""
        file, names = self._opened(self._source.path / self._source.key_to_filename_map.get(key, ""))
        return file.get_tensor(key) if key in names else None

    def close(self) -> None:
        """Bring nothing more, and close the files."""
        if self._ahead is not None:
            self._ahead.close()
        self._opened.cache_clear()


def _open(path: Path) -> tuple[Any, frozenset[str]]:
    from safetensors import safe_open

    if not path.is_file():
        return None, frozenset()
    file: Any = safe_open(path, framework="pt", device="cpu")
    return file, frozenset(file.keys())


@contextmanager
def open_files(bridge: Any) -> Iterator[WeightFiles]:
    """Let a bridge read tensors from files that stay open until the block ends."""
    from megatron.bridge.models.hf_pretrained.state import SafeTensorsStateSource

    theirs: Any = SafeTensorsStateSource
    state = bridge.hf_pretrained.state

    class OpenFiles(theirs):
        """The bridge's source of tensors."""

        @cached_property
        def _names(self) -> _Names:
            return _Names(super().get_all_keys())

        def get_all_keys(self) -> list[str]:
            return self._names

        def load_tensors(self, keys_to_load: list[str]) -> dict[str, torch.Tensor]:
            found: dict[str, torch.Tensor] = {}
            for key in keys_to_load:
                tensor = files.find(key)
                # The files may not be what their index says. The bridge searches them, and says what is missing.
                found.update(super().load_tensors([key]) if tensor is None else {key: tensor})
            return found

    if type(state.source) is SafeTensorsStateSource:
        state.source = OpenFiles(state.source.model_name_or_path)
    files = WeightFiles(state.source)
    try:
        yield files
    finally:
        files.close()
