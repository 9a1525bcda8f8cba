"""Profiles generation and training at once on one GPU: how much each slows the other down.

python benchmarks/profile_overlap.py --size 7b                        16 requests and some ways to divide the GPU
python benchmarks/profile_overlap.py --size 7b --running 1 16 64 --shares 0.75 --parts-ahead 2 4 1000

First each runs alone, then both at once, for each share of the multiprocessors that training gets. A share of 0 is a
stream of low priority on all of them. `worth` is how much of both is done in a second, where 1 is one after the other.
`--out` gets the figures as JSON, one line for each combination.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "crds"), str(ROOT / "trainer_image")]

import numpy as np  # noqa: E402

from lorarl_api.load import load_job  # noqa: E402
from lorarl_trainer.samples.packing import packed_length  # noqa: E402
from lorarl_trainer.samples.types import GradientRequest, LossChoice, Sample, Samples, UpdateRequest  # noqa: E402
from lorarl_trainer.workers.worker import Rank, Worker  # noqa: E402
from side_by_side import ours  # noqa: E402
from side_by_side.processes import environment  # noqa: E402
from side_by_side.work import SHAPES, Work  # noqa: E402

WORK = Work(prompts=32, group=16, prompt_tokens=256, response_tokens=1024)
MEAN_TOKENS = 640
"""Of the completions that are trained."""
LOSS = LossChoice("policy_gradient", 0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SHAPES), required=True)
    parser.add_argument("--running", type=int, nargs="+", default=[16], help="requests that decode")
    parser.add_argument("--shares", type=float, nargs="+", default=[0, 0.5, 0.625, 0.75, 0.875])
    parser.add_argument("--parts-ahead", type=int, nargs="+", default=[4], help="layers that training may be ahead")
    parser.add_argument("--tokens", type=int, default=600, help="decode steps")
    parser.add_argument("--switch-interval", type=float, help="seconds, for sys.setswitchinterval")
    parser.add_argument("--models", type=Path, default=Path("/dev/shm/lorarl-bench-models"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.switch_interval:
        sys.setswitchinterval(options.switch_interval)
    # In a process of its own, so that the GPU is empty, and CUDA has not been set up yet.
    made = [sys.executable, "-m", "side_by_side.prepare", str(options.models), options.size]
    subprocess.run(made, check=True, cwd=ROOT / "benchmarks", env=environment(()))
    with tempfile.TemporaryDirectory() as folder:
        worker = start(options.models / options.size, Path(folder))
        samples = micro_batch(worker.backend._trainer._micro_batch_tokens, SHAPES[options.size].vocab_size)
        request = GradientRequest(samples, LOSS, 1.0, on_policy=False)
        for running in options.running:
            for share in options.shares:
                for ahead in options.parts_ahead:
                    found = {"size": options.size, "running": running, "share": share, "parts_ahead": ahead}
                    found |= measure(worker, request, running, share, ahead, options.tokens)
                    if options.out:
                        with options.out.open("a") as file:
                            file.write(json.dumps(found) + "\n")


def start(model: Path, folder: Path) -> Worker:
    spec = load_job(json.dumps(ours.manifest(model, folder, WORK, 1, 1)), ["spec.trainer.overlap=true"]).spec
    worker = Worker(spec, Rank(0, 1, 0, None, None))
    clock = time.perf_counter()
    built = worker.start(model, (1,), None)
    assert built.overlapped, f"it does not fit at once:\n{built.memory}"
    worker.sync(1)
    print(f"started in {time.perf_counter() - clock:.0f} s", flush=True)
    return worker


def micro_batch(tokens: int, vocabulary: int) -> Samples:
    """Groups of completions with geometric lengths that fill a micro-batch."""
    stream, samples = np.random.default_rng(0), list[Sample]()
    while True:
        prompt = stream.integers(2, vocabulary, WORK.prompt_tokens)
        for _ in range(WORK.group):
            length = int(min(stream.geometric(1 / MEAN_TOKENS), 4096))
            whole = np.concatenate([prompt, stream.integers(2, vocabulary, length)])
            more = [*samples, Sample(whole, len(prompt), 1.0, np.zeros(length, np.float32))]
            groups = -(-len(more) // WORK.group)
            if packed_length(more, range(len(more))) + (groups - 1) * WORK.prompt_tokens > tokens:
                return Samples(samples)
            samples = more


def measure(
    worker: Worker, request: GradientRequest, running: int, share: float, ahead: int, tokens: int
) -> dict[str, float]:
    divide(worker, share, ahead)
    forget(worker, request)
    worker.accumulate(request)  # some things are made on demand
    train_alone = seconds_of(worker, request, 3)
    generate(worker, running, 50)
    decode_alone = generate(worker, running, tokens)
    spans: list[float] = []
    with training(worker, request, spans):
        decode_beside = generate(worker, running, tokens)
    # The last one was alone for a part of its time.
    train_beside = float(np.mean(spans[:-1] or spans))
    forget(worker, request)
    worth = decode_alone / decode_beside + train_alone / train_beside
    print(
        f"{running} running, share {share:g}, {ahead} parts ahead: a decode step {1e3 * decode_alone:.2f} ms alone, "
        f"{1e3 * decode_beside:.2f} beside; a micro-batch {train_alone:.3f} s alone, {train_beside:.3f} beside "
        f"({len(spans)} of them); worth {worth:.2f}",
        flush=True,
    )
    return {
        "decode_alone_s": decode_alone,
        "decode_beside_s": decode_beside,
        "train_alone_s": train_alone,
        "train_beside_s": train_beside,
        "worth": worth,
    }


def divide(worker: Worker, share: float, ahead: int) -> None:
    """Give training this share of the GPU, and let it be so many layers ahead."""
    import torch

    from lorarl_trainer.devices import cuda_background

    trainer: Any = worker.backend._trainer
    first_time = "_background" not in vars(trainer)
    cuda_background.SHARE, cuda_background._PARTS_AHEAD = share or 0.5, ahead
    trainer._background = cuda_background.CudaBackground(worker.backend.model.device, torch.cuda.current_stream())
    if share == 0:
        trainer._background._own = torch.cuda.Stream(priority=0)
    if first_time:

        def pace() -> None:
            trainer._background.pace()  # whichever it is by then

        worker.backend.model.call_between_layers(pace)
    torch.cuda.empty_cache()  # the memory of another background's stream


def generate(worker: Worker, running: int, tokens: int) -> float:
    """Return the seconds of a decode step."""
    prompts = np.random.default_rng(1).integers(10, 1000, (running, WORK.prompt_tokens)).tolist()
    clock = time.perf_counter()
    for _ in worker.generate(prompts, list(range(running)), max_tokens=tokens):
        pass
    return (time.perf_counter() - clock) / tokens


def seconds_of(worker: Worker, request: GradientRequest, count: int) -> float:
    clock = time.perf_counter()
    for _ in range(count):
        worker.accumulate(request)
    return (time.perf_counter() - clock) / count


@contextmanager
def training(worker: Worker, request: GradientRequest, spans: list[float]) -> Iterator[None]:
    """Train in another thread while the engine generates within the block."""
    over = threading.Event()

    def train() -> None:
        assert worker.engine is not None
        while not worker.engine.generating:
            time.sleep(1e-4)
        while not over.is_set():
            spans.append(seconds_of(worker, request, 1))

    thread = threading.Thread(target=train)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def forget(worker: Worker, request: GradientRequest) -> None:
    """Make an update that changes nothing, of what was accumulated."""
    tokens = sum(sample.response_length for sample in request.samples)
    about = {"loss": request.loss, "temperature": request.temperature, "on_policy": False}
    worker.update(UpdateRequest(Samples(()), **about, total_tokens=tokens, learning_rate=0.0, seed=0, limits=None))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
