"""Times layers of a mixture of experts, forward and backward, on one GPU and on two that share the experts.

python benchmarks/bench_experts.py              four layers of Qwen3-30B-A3B's shape, 8,192 tokens: a minute on two GPUs
python benchmarks/bench_experts.py --generation 8 64 256 512    a step of generation with so many tokens: seconds
python benchmarks/bench_experts.py --tiny --raw /tmp/experts.json      a trial on a CPU

The layers are the trainer's own norm, router, experts and adapters (rank 16), with random weights. All ranks together
have the same tokens. Beside the time stands the least that is possible: products at the peak of an H100, and rows of
tokens over NVLink, in turn. Where the host is as slow as the whole, a GPU waits for Python. A step of
generation is one layer without norm and router, in a CUDA graph; there the least is to read the experts once. Figures
are added to the file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from math import comb
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("crds", "trainer_image")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as multiprocessing  # noqa: E402
from torch.nn import Module, ModuleDict, Parameter  # noqa: E402

from generation.products import in_graph  # noqa: E402
from lorarl_trainer.backends.megatron.fused_experts import Compared, FusedExperts  # noqa: E402
from lorarl_trainer.backends.stacked import Taker  # noqa: E402
from lorarl_trainer.lora.experts import padded_rank  # noqa: E402
from lorarl_trainer.lora.grouped_experts import Adapter, compute_mixture  # noqa: E402
from toy import read_figures, write_figures  # noqa: E402

RAW = ROOT / "benchmarks/results/experts.json"
PEAK, LINK = 989e12, 450e9
"""Operations/s of an H100 in bf16, and bytes/s of its NVLink in each direction."""
SHAPE = {"layers": 4, "hidden": 2048, "inner": 768, "experts": 128, "active": 8, "rank": 16, "tokens": 8192}
TINY = {"layers": 2, "hidden": 64, "inner": 32, "experts": 8, "active": 4, "rank": 8, "tokens": 64}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tokens", type=int, help="of all ranks together")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--generation", type=int, nargs="+", default=[], help="numbers of tokens, on one GPU")
    parser.add_argument("--label", default="", help="kept with the figures")
    parser.add_argument("--tiny", action="store_true", help="small shapes")
    parser.add_argument("--raw", type=Path, default=RAW, help="figures, to which these are added")
    chosen = parser.parse_args()
    shape = (TINY if chosen.tiny else SHAPE) | ({"tokens": chosen.tokens} if chosen.tokens else {})
    if chosen.generation:
        steps = [{"label": chosen.label, **generation(shape | {"tokens": tokens})} for tokens in chosen.generation]
        write_figures(chosen.raw, read_figures(chosen.raw, []) + steps)
        return
    found: list[dict[str, Any]] = []
    for ranks in chosen.ranks:
        figures = multiprocessing.get_context("spawn").SimpleQueue()
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.spawn(measure, (ranks, Path(folder), shape, chosen.steps, figures), nprocs=ranks)
        found.append({"label": chosen.label, **shape, "ranks": ranks, **figures.get(), **floor(shape, ranks)})
        row, products, rows = found[-1], found[-1]["floor_products_ms"], found[-1]["floor_rows_ms"]
        print(
            f"EP {ranks}: forward {row['forward_ms']:.2f}, backward {row['backward_ms']:.2f}, "
            f"both {row['ms']:.2f} ms (of which the host {row['host_ms']:.2f}); {found[0]['ms'] / row['ms']:.2f} "
            f"times as fast; floor {products + rows:.2f} ms ({products:.2f} products, {rows:.2f} rows)",
            flush=True,
        )
    write_figures(chosen.raw, read_figures(chosen.raw, []) + found)


def floor(shape: dict[str, int], ranks: int) -> dict[str, float]:
    """Return the least milliseconds of products and of rows.

    A frozen matrix is in two products of a row, an adapter's in three. A row goes to each rank that has one of its
    experts, if any are as likely: there and back, forward and backward.
    """
    hidden, inner, rank, experts = shape["hidden"], shape["inner"], shape["rank"], shape["experts"]
    frozen, adapters = 3 * hidden * inner, 3 * rank * (hidden + inner)
    rows = shape["layers"] * shape["tokens"] * shape["active"] / ranks
    meets = 1 - comb(experts - experts // ranks, shape["active"]) / comb(experts, shape["active"])
    sent = shape["layers"] * shape["tokens"] / ranks * (ranks - 1) * meets * hidden * 2
    products = rows * 2 * (2 * frozen + 3 * adapters)
    return {"floor_products_ms": 1e3 * products / PEAK, "floor_rows_ms": 1e3 * 4 * sent / LINK}


def measure(rank: int, ranks: int, folder: Path, shape: dict[str, int], steps: int, figures: Any) -> None:
    """Put the milliseconds of a step, the slowest rank's, into `figures`."""
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    meet = f"file://{folder / 'ranks'}"
    dist.init_process_group("nccl" if gpu else "gloo", init_method=meet, rank=rank, world_size=ranks)
    torch.manual_seed(rank)
    layers = [layer_of(shape, ranks, device) for _ in range(shape["layers"])]
    x = draw(shape["tokens"] // ranks, shape["hidden"], device=device).mul(50).requires_grad_()
    by_y = torch.randn_like(x)
    wait = torch.cuda.synchronize if gpu else lambda: None
    times = []
    for _ in range(5 + steps):
        wait()
        dist.barrier()
        wait()
        moments, y = [time.perf_counter()], x
        for layer in layers:
            y = layer.add(y, None)
        forward_host = time.perf_counter()
        wait()
        moments.append(time.perf_counter())
        y.backward(by_y)
        backward_host = time.perf_counter()
        wait()
        forward, backward = moments[1] - moments[0], time.perf_counter() - moments[1]
        host = forward_host - moments[0] + backward_host - moments[1]
        times.append([forward, backward, forward + backward, host])
    middle = 1e3 * torch.tensor(times[5:], device=device).median(0).values
    dist.all_reduce(middle, dist.ReduceOp.MAX)
    if rank == 0:
        figures.put(dict(zip(("forward_ms", "backward_ms", "ms", "host_ms"), middle.tolist(), strict=True)))
    dist.destroy_process_group()


def generation(shape: dict[str, int]) -> dict[str, Any]:
    """Return the microseconds of one layer's experts in a step of generation, by both ways."""
    from lorarl_trainer.kernels.triton_experts import mix_few

    hidden, inner, experts, rank = shape["hidden"], shape["inner"], shape["experts"], padded_rank(shape["rank"])
    new = partial(draw, device=torch.device("cuda"))
    x, gate_up, down = new(shape["tokens"], hidden), new(experts, 2 * inner, hidden), new(experts, hidden, inner)
    weights, chosen = torch.randn(len(x), experts, device="cuda").softmax(-1).topk(shape["active"])
    first = Adapter(new(experts, 2 * rank, hidden), new(experts, 2 * inner, 2 * rank))
    second = Adapter(new(experts, rank, inner), new(experts, hidden, rank))
    ways = {
        "few": lambda: mix_few(x, weights, chosen, (gate_up, *first[:2]), (down, *second[:2])),
        "grouped": lambda: compute_mixture(x, weights, chosen, gate_up, down, (first, second)),
    }
    found = {name: 1e3 * in_graph(compute, repeats=50) for name, compute in ways.items()}
    read = (gate_up.nbytes + down.nbytes) * len(chosen.unique()) / experts
    print(f"{shape['tokens']} tokens: {found} microseconds; {read / 1e6:.0f} MB to read", flush=True)
    return {**shape, "layers": 1, "microseconds": found, "bytes": read, "device": torch.cuda.get_device_name()}


def layer_of(shape: dict[str, int], ranks: int, device: torch.device) -> FusedExperts:
    """Return a rank's part of a layer, on what stands for Megatron's."""
    hidden, inner, new = shape["hidden"], shape["inner"], partial(draw, device=device)

    def adapter(outputs: int, inputs: int) -> Module:
        adapter = Module()
        adapter.linear_in, adapter.linear_out = Module(), Module()
        adapter.linear_in.weight = Parameter(new(shape["rank"], inputs))
        adapter.linear_out.weight = Parameter(new(outputs, shape["rank"]))
        adapter.dim, adapter.alpha = shape["rank"], 2 * shape["rank"]
        return adapter

    experts = [
        SimpleNamespace(
            linear_fc1=LoRALinear(
                new(2 * inner, hidden),
                ModuleDict({f"adapter_{part}": adapter(inner, hidden) for part in ("gate", "up")}),
            ),
            linear_fc2=LoRALinear(new(hidden, inner), adapter(hidden, inner)),
        )
        for _ in range(shape["experts"] // ranks)
    ]
    router = SimpleNamespace(weight=new(shape["experts"], hidden))
    layer = SimpleNamespace(
        mlp=SimpleNamespace(ep_group=dist.group.WORLD, experts=SimpleNamespace(local_experts=experts), router=router),
        config=SimpleNamespace(
            moe_router_topk=shape["active"], moe_router_pre_softmax=False, recompute_granularity=None
        ),
        pre_mlp_layernorm=SimpleNamespace(weight=torch.ones(hidden, dtype=router.weight.dtype, device=device)),
    )
    return added_up(FusedExperts(layer, 1e-6, Compared(), follows=False))


class LoRALinear:
    """Of the name and the parts that `FusedExperts` looks for."""

    _adapter_enabled = True

    def __init__(self, weight: torch.Tensor, adapter: Module) -> None:
        self.to_wrap, self.adapter = SimpleNamespace(weight=weight), adapter


def added_up(layer: FusedExperts) -> FusedExperts:
    """Let the layer's gradients be added up elsewhere, as `AdapterOptimizer` does."""
    for stacked in layer.adapters():
        total = torch.zeros(len(stacked.parts), *stacked.parts[0].shape, device=stacked.parts[0].device)

        def add(gradient: torch.Tensor, total: torch.Tensor = total) -> None:
            total.add_(gradient)

        stacked.takers.append(Taker(lambda: True, add))
    return layer


def draw(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.randn(*shape, device=device, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32) * 0.02


if __name__ == "__main__":
    main()
