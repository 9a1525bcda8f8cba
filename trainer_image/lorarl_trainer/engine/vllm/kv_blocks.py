"""The KV cache's blocks: which request has which, and which adapter version computed them.

vLLM's manager finds cached prefixes and gives out the blocks of a prompt. A request that decodes gets one block at a
time, for all such requests of a step in one call: vLLM's own call per request takes five times as long.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lorarl_trainer.engine.vllm import binding, slices
from lorarl_trainer.engine.vllm.names import Scheduling
from lorarl_trainer.errors import StaleAdapterError
from lorarl_trainer.samples.arrays import Ints

_NULL_BLOCK = 0
"""The block that vLLM puts where a request needs none, and keeps to itself. All versions share it."""


def version_of(request: slices.Request) -> int:
    """Return the adapter version that a request asks for; 0 for none."""
    return request.lora_request.lora_int_id if request.lora_request else 0


class KVBlocks:
    """The blocks of one engine.

    Attributes:
        block_size: tokens of a block.
    """

    def __init__(self, manager: slices.KVCacheManager, config: slices.KVCacheConfig) -> None:
        """Take vLLM's manager of the blocks of a cache."""
        binding.checked(manager, slices.KVCacheManager, Scheduling)
        self._manager = manager
        self._pool = binding.checked(manager.block_pool, slices.BlockPool, Scheduling)
        coordinator = binding.checked(manager.coordinator, slices.KVCacheCoordinator, Scheduling)
        # A group for all layers with attention, whose blocks grow in number with a request, and some for layers that
        # keep a state, which is one block for each of their groups.
        specs = [group.kv_cache_spec for group in config.kv_cache_groups]
        (self._grows,) = (index for index, spec in enumerate(specs) if not isinstance(spec, Scheduling.MambaSpec))
        self._groups = len(specs)
        self._requests = coordinator.single_type_managers[self._grows]
        binding.checked(self._requests, slices.SingleTypeKVCacheManager, Scheduling)
        self.block_size = specs[self._grows].block_size
        self._usable = config.num_blocks - 1
        self._made_by = np.zeros(config.num_blocks, np.int64)  # the adapter version, by block

    @property
    def free(self) -> int:
        """How many blocks no request has; some may hold cached prefixes."""
        return self._pool.get_num_free_blocks()

    @property
    def used_share(self) -> float:
        """How many blocks requests have, 0 to 1."""
        return 1 - self.free / self._usable

    def admit(self, request: slices.Request, budget: int, alone: bool) -> int | None:
        """Give a request the blocks of the tokens that a step computes, if there are enough for all that are known.

        `budget`: how many of its tokens the step can compute. `alone`: no other request has blocks. Otherwise the
        margin stays free (`planning.execution.WATERMARK`).

        Returns:
            How many of its tokens are computed already; None if there are too few blocks.

        Raises:
            StaleAdapterError: another adapter version computed a cached block.
        """
        cached, known, _ = self._manager.get_computed_blocks(request)
        blocks = self._manager.allocate_slots(
            *(request, min(budget, request.num_tokens - known), known, cached),
            full_sequence_must_fit=True,
            has_scheduled_reqs=not alone,
        )
        if blocks is None:
            return None
        request.num_computed_tokens = known
        self._stamp(request, known)
        return known

    def add(self, request: slices.Request, computed: int, size: int) -> tuple[list[int], ...] | None:
        """Give a request the blocks of the next `size` of its known tokens, of which `computed` are computed.

        Returns:
            The new blocks, as vLLM's model runners take them; None if there are too few.
        """
        request.num_computed_tokens = computed
        blocks = self._manager.allocate_slots(request, size, has_scheduled_reqs=False)
        if blocks is None:
            return None
        new: tuple[list[int], ...] = blocks.get_block_ids()
        self._made_by[[one for group in new for one in group]] = version_of(request)
        return new

    def room(self, blocks: tuple[list[int], ...]) -> int:
        """Return how many tokens' keys and values some blocks hold."""
        return len(blocks[self._grows]) * self.block_size

    def of(self, request: slices.Request) -> tuple[list[int], ...]:
        """Return a request's blocks, as vLLM's model runners take them."""
        return self._manager.get_block_ids(request.request_id)

    def extend(self, requests: Sequence[str], versions: Ints) -> list[tuple[list[int], ...]]:
        """Give each of these requests one block more, and return them as vLLM's model runners take them.

        `versions`: the adapter version of each.
        """
        blocks = self._pool.get_new_blocks(len(requests))
        held = self._requests.req_to_blocks
        for name, block in zip(requests, blocks, strict=True):
            held[name].append(block)
        ids = [block.block_id for block in blocks]
        self._made_by[ids] = versions
        return [tuple([one] if group == self._grows else [] for group in range(self._groups)) for one in ids]

    def cache(self, request: slices.Request, computed: int) -> None:
        """Let others find the blocks of a request's first tokens, which are computed or requested."""
        self._manager.cache_blocks(request, computed)

    def release(self, request: slices.Request) -> None:
        """Take a request's blocks back. A step that is under way may still write to them; later steps come after it."""
        self._manager.free(request)

    def begin_step(self) -> None:
        """Tell vLLM's manager that a step begins."""
        self._manager.new_step_starts()

    def _stamp(self, request: slices.Request, known: int) -> None:
        """Note which version computes a request's blocks, and require that it computed those that it found cached.

        Raises:
            StaleAdapterError: another adapter version computed a cached block.
        """
        cached, version = known // self.block_size, version_of(request)
        blocks = self.of(request)
        found = np.asarray(blocks[self._grows][:cached], np.int64)
        others = self._made_by[found[found != _NULL_BLOCK]]
        if len(wrong := others[others != version]):
            raise StaleAdapterError(
                f"vLLM's prefix cache gave adapter version {version} keys and values that version "
                f"{int(wrong.max())} computed. No update was made with them, and the last checkpoint is good. "
                "Please report this."
            )
        for group, held in enumerate(blocks):
            self._made_by[held[cached if group == self._grows else 0 :]] = version
