"""What Megatron is set up with on a GPU, asked without one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch.nn.functional import silu

from lorarl_trainer.backends.megatron.platform_cuda import CudaPlatform


@pytest.mark.parametrize(("groups", "ranks", "fused"), [(2, 1, True), (2, 2, True), (1, 2, False), (None, 4, True)])
def test_ranks_that_share_a_key_value_group_split_its_queries_themselves(
    groups: int | None, ranks: int, fused: bool
) -> None:
    """Megatron's fused step would hand each of them the whole group's queries."""
    provider = SimpleNamespace(
        gated_linear_unit=True,
        activation_func=silu,
        position_embedding_type="rope",
        qk_layernorm=False,
        num_attention_heads=4,
        num_query_groups=groups,
        tensor_model_parallel_size=ranks,
    )
    CudaPlatform().configure_provider(provider)
    assert provider.fused_single_qkv_rope is fused
