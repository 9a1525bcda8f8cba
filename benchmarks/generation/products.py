"""Times the linear layers of a decode step by themselves, with the adapter in several ways."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from side_by_side.work import SHAPES


class Layer(NamedTuple):
    """What one linear layer multiplies with, and the counters of the kernel for few tokens."""

    w: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    arrived: torch.Tensor


def products(options: argparse.Namespace) -> dict[str, Any]:
    """Time the decoder's linear layers in a CUDA graph, each with its own weights and several ways of the adapter."""
    from torch.nn.functional import linear

    from lorarl_trainer.engine.vllm.patches.linear import adapted_linear
    from lorarl_trainer.engine.vllm.patches.linear_kernel import arrivals

    shape = SHAPES[options.size]
    hidden, mlp, rank = shape.hidden_size, shape.intermediate_size, options.rank
    kv = hidden // shape.num_attention_heads * shape.num_key_value_heads
    sizes = [
        (inputs, outputs, slices)
        for _ in range(shape.num_hidden_layers)
        for inputs, outputs, slices in (
            (hidden, hidden + 2 * kv, 3),
            (hidden, hidden, 1),
            (hidden, 2 * mlp, 2),
            (mlp, hidden, 1),
        )
    ]
    make = {"device": "cuda", "dtype": torch.bfloat16}
    layers = []
    for width, outputs, slices in sizes:
        w, a = (torch.randn(rows, width, **make) * 0.02 for rows in (outputs, slices * rank))
        b = torch.randn(outputs, slices * rank, **make) * 0.02
        layers.append(Layer(w, a, b, arrivals(a, b)))
    side = torch.cuda.Stream()

    def first(x: torch.Tensor, layer: Layer) -> torch.Tensor:
        return linear(linear(x, layer.a), layer.b).addmm_(x, layer.w.t())

    def after(x: torch.Tensor, layer: Layer) -> torch.Tensor:
        return linear(x, layer.w).addmm_(linear(x, layer.a), layer.b.t())

    def beside(x: torch.Tensor, layer: Layer) -> torch.Tensor:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            low = linear(x, layer.a)
        output = linear(x, layer.w)
        torch.cuda.current_stream().wait_stream(side)
        return output.addmm_(low, layer.b.t())

    ways: dict[str, Callable[..., torch.Tensor]] = {
        "base alone": lambda x, layer: linear(x, layer.w),
        "ours": lambda x, layer: adapted_linear(x, layer.w, None, layer.a, layer.b, layer.arrived),
        "adapter first": first,
        "adapter after": after,
        "A beside the base": beside,
        "A and B alone": lambda x, layer: linear(linear(x, layer.a), layer.b),
        "A alone": lambda x, layer: linear(x, layer.a),
    }
    found: dict[str, Any] = {}
    for tokens in (512, 256, 128, 64, 32, 16, 1):
        inputs = {width: torch.randn(tokens, width, **make) for width in (hidden, mlp)}
        for name, way in ways.items():

            def run(way: Callable[..., torch.Tensor] = way, inputs: dict[int, torch.Tensor] = inputs) -> None:
                for layer in layers:
                    way(inputs[layer.w.shape[1]], layer)

            found[f"{tokens} {name}"] = ms = in_graph(run)
            flops = 2 * tokens * sum(layer.w.numel() for layer in layers)
            print(
                f"  {tokens} tokens, {name}: {ms:.2f} ms a step ({flops / ms * 1e-9:.0f} TFLOP/s of the base)",
                flush=True,
            )
    return {"products_ms": found}


def in_graph(run: Callable[[], object], repeats: int = 10) -> float:
    """Return the milliseconds of one replay."""
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / repeats
