"""Names and shapes of the tensors of Llama's kind of model, with an MLP or a mixture of experts in each layer."""

from __future__ import annotations

from collections.abc import Iterator

from lorarl_trainer.lora.targets import SHARED_EXPERT_GATE
from lorarl_trainer.models.families import Experts, Family
from lorarl_trainer.models.shape import ModelShape

ROUTER = "gate"
ROUTERS = (ROUTER, "router", SHARED_EXPERT_GATE)
"""The last parts of the names of what sends tokens to experts. It never gets an adapter."""
_GATE_UP_DOWN = ("gate_proj", "up_proj", "down_proj")


def tensor_shapes(family: Family, shape: ModelShape, queries: int, inner: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor, by its Hugging Face name.

    `inner`: rows of the MLP's gate, or of an expert's.
    """
    hidden = shape.hidden
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocabulary, hidden)}
    if family.experts:
        mlp = dict(_mixture(family.experts, hidden, inner, shape.experts))
    else:
        mlp = dict(_projections("mlp", _GATE_UP_DOWN, hidden, inner))
    of_layer = dict(_attention(family, shape, queries)) | {f"{name}.weight": size for name, size in mlp.items()}
    of_layer |= {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    for layer in range(shape.layers):
        shapes |= {f"model.layers.{layer}.{name}": size for name, size in of_layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not shape.tied:
        shapes["lm_head.weight"] = (shape.vocabulary, hidden)
    return shapes


def _attention(family: Family, shape: ModelShape, queries: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes of the weights of a layer's attention; `queries` is their width."""
    keys = shape.key_heads * shape.head
    for name, outputs in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        yield f"self_attn.{name}.weight", (outputs, shape.hidden)
        if family.qkv_biases:
            yield f"self_attn.{name}.bias", (outputs,)
    if family.head_norms or family.whole_norms:
        yield "self_attn.q_norm.weight", (queries if family.whole_norms else shape.head,)
        yield "self_attn.k_norm.weight", (keys if family.whole_norms else shape.head,)
    yield "self_attn.o_proj.weight", (shape.hidden, queries)


def _mixture(names: Experts, hidden: int, inner: int, experts: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield names and shapes of the weights of a layer's router and experts."""
    yield f"{names.block}.{ROUTER}", (experts, hidden)
    for number in range(experts):
        yield from _projections(f"{names.block}.experts.{number}", names.projections, hidden, inner)


def _projections(
    block: str, names: tuple[str, str, str], hidden: int, inner: int
) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield names and shapes of the weights of gate, up and down."""
    gate, up, down = names
    yield f"{block}.{gate}", (inner, hidden)
    yield f"{block}.{up}", (inner, hidden)
    yield f"{block}.{down}", (hidden, inner)
