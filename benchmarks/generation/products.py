"""Times the linear layers of a decode step by themselves, with the adapter in several ways."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

from side_by_side.work import SHAPES


def products(options: argparse.Namespace) -> dict[str, Any]:
    """Time the decoder's linear layers in a CUDA graph, each with its own weights and several ways of the adapter."""
    from torch.nn.functional import linear

    from lorarl_trainer.engine.vllm.patches.linear import adapted_linear

    shape = SHAPES[options.size]
    hidden, mlp, rank = shape.hidden_size, shape.intermediate_size, options.rank
    kv = hidden // shape.num_attention_heads * shape.num_key_value_heads
    layers = [
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
    weights = [torch.randn(outputs, inputs, **make) * 0.02 for inputs, outputs, _ in layers]
    a = [torch.randn(slices * rank, inputs, **make) * 0.02 for inputs, _, slices in layers]
    b = [torch.randn(outputs, slices * rank, **make) * 0.02 for _, outputs, slices in layers]
    side = torch.cuda.Stream()

    def first(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return linear(linear(x, a), b).addmm_(x, w.t())

    def after(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return linear(x, w).addmm_(linear(x, a), b.t())

    def beside(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            low = linear(x, a)
        output = linear(x, w)
        torch.cuda.current_stream().wait_stream(side)
        return output.addmm_(low, b.t())

    ways: dict[str, Callable[..., torch.Tensor]] = {
        "base alone": lambda x, w, a, b: linear(x, w),
        "ours": lambda x, w, a, b: adapted_linear(x, w, None, a, b),
        "adapter first": first,
        "adapter after": after,
        "A beside the base": beside,
        "A and B alone": lambda x, w, a, b: linear(linear(x, a), b),
        "A alone": lambda x, w, a, b: linear(x, a),
    }
    found: dict[str, Any] = {}
    for tokens in (512, 256, 128, 64, 16, 1):
        inputs = {width: torch.randn(tokens, width, **make) for width in {inputs for inputs, _, _ in layers}}
        for name, way in ways.items():

            def run(way: Callable[..., torch.Tensor] = way, inputs: dict[int, torch.Tensor] = inputs) -> None:
                for index, (width, _, _) in enumerate(layers):
                    way(inputs[width], weights[index], a[index], b[index])

            found[f"{tokens} {name}"] = ms = in_graph(run)
            flops = 2 * tokens * sum(inputs * outputs for inputs, outputs, _ in layers)
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
