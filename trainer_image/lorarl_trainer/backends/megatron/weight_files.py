"""Reads a model's files for Megatron-Bridge, which opens one for each tensor and searches all names for each name.

That takes time with the square of the number of tensors: two and a half minutes for the 9,216 matrices of a mixture of
24 layers with 128 experts. Here a file stays open, and a name is looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch

_FILES = 4
"""Files that are open at a time. A bridge loads layer by layer, and a layer is in one or two."""


class _Names(list[str]):
    """A list of names that knows what is in it."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self._known = frozenset(self)

    def __contains__(self, name: object) -> bool:
        return name in self._known


@contextmanager
def open_files(bridge: Any) -> Iterator[None]:
    """Let a bridge read tensors from files that stay open until the block ends."""
    from megatron.bridge.models.hf_pretrained.state import SafeTensorsStateSource
    from safetensors import safe_open

    theirs: Any = SafeTensorsStateSource

    @lru_cache(_FILES)
    def opened(path: Path) -> tuple[Any, frozenset[str]]:
        if not path.is_file():
            return None, frozenset()
        file: Any = safe_open(path, framework="pt", device="cpu")
        return file, frozenset(file.keys())

    class OpenFiles(theirs):
        """The bridge's source of tensors."""

        @cached_property
        def _names(self) -> _Names:
            return _Names(super().get_all_keys())

        def get_all_keys(self) -> list[str]:
            return self._names

        def load_tensors(self, keys_to_load: list[str]) -> dict[str, torch.Tensor]:
            found = {}
            for key in keys_to_load:
                file, names = opened(self.path / self.key_to_filename_map.get(key, ""))
                if key not in names:
                    # The files are not what their index says. The bridge searches them, and says what is missing.
                    found.update(super().load_tensors([key]))
                else:
                    found[key] = file.get_tensor(key)
            return found

    state = bridge.hf_pretrained.state
    if type(state.source) is SafeTensorsStateSource:
        state.source = OpenFiles(state.source.model_name_or_path)
    try:
        yield
    finally:
        opened.cache_clear()
