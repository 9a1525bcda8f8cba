"""Measures `lorarl dashboard` against its targets: many runs in a folder, and in a bucket of the tests' S3 server.

    make demo-toy                                                               the run that is copied
    python benchmarks/bench_dashboard.py --run out/addition --runs 10000        some minutes on two cores

Each copy has the files of a real run's record, with its own name, model, rewards and end. The bucket also has
checkpoints, which a listing returns too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import batched
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

import obstore  # noqa: E402

from lorarl_trainer.storage import Store, open_store  # noqa: E402
from lorarl_trainer.threads import in_parallel  # noqa: E402
from support.s3_server import S3Server, s3_server  # noqa: E402

READ = ("run_summary.json", "metrics.jsonl", "events.jsonl", "samples.jsonl")
"""The files of a record that the dashboard reads; of the others a listing has the names."""
OTHERS = (
    *("report.html", "reward.png", "logs/driver.log", "logs/worker-0.log", "starts/0001-after-step-0.yaml"),
    "tensorboard/events.out.tfevents.1.0",
)
CHECKPOINT = ("adapter_config.json", "adapter_model.safetensors", "checkpoint.json", "README.md", "state.safetensors")
MODELS = ("hf://Qwen/Qwen3-4B-Instruct-2507", "hf://meta-llama/Llama-3.2-1B", "s3://team/models/smollm2")
LONG_STEPS = 2000
"""Of every hundredth run: the largest curves."""
SHOWS = 7
WRITERS, BATCH = 16, 500
BUCKET, FOLDER = "team", "adapters"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--run", type=Path, required=True, help="folder of a run that is copied")
    arguments.add_argument("--runs", type=int, default=10_000)
    arguments.add_argument("--out", type=Path, help="file for the figures, as JSON")
    chosen = arguments.parse_args()
    rows: list[tuple[str, str, str]] = []
    with tempfile.TemporaryDirectory(prefix="lorarl-bench-") as folder, s3_server(Path(folder)) as s3:
        local = Path(folder, "out")
        made = copies(chosen.run, chosen.runs)
        for name, files in made:
            for path, data in files.items():
                (local / name / path).parent.mkdir(parents=True, exist_ok=True)
                (local / name / path).write_bytes(data)
        rows += measured("a folder", str(local), {}, Path(folder, "cache-1"), chosen.runs)
        s3.make_bucket(BUCKET)
        fill(s3, copies(chosen.run, chosen.runs))
        uri, keys = f"s3://{BUCKET}/{FOLDER}", s3.secret()
        rows += floor(open_store(uri, keys), uri, keys)
        rows += measured("a bucket", uri, keys, Path(folder, "cache-2"), chosen.runs)
    print(f"| {chosen.runs:,} runs | measured | target |\n|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    if chosen.out:
        chosen.out.write_text(json.dumps({"runs": chosen.runs, "rows": rows}, indent=1) + "\n")


def copies(run: Path, count: int) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield the name and the files of each copy of a run."""
    original = {name: (run / name).read_bytes() for name in READ if (run / name).exists()}
    summary = json.loads(original["run_summary.json"])
    lines = [json.loads(line) for line in original["metrics.jsonl"].splitlines()]
    for number in range(count):
        chance = random.Random(number)
        name, ease = f"sums-{number:05}", chance.uniform(0.3, 1.0)
        own = {**summary, "job": name, "base_model": chance.choice(MODELS), "message": ""}
        own["state"] = chance.choice(["succeeded"] * 8 + ["failed", "interrupted"])
        if own["state"] == "failed":
            own["message"] = "worker 1 ended: out of memory"
        own["evals"] = [{**each, "after": each["after"] and ease * each["after"]} for each in summary["evals"]]
        metrics = [line | {key: ease * line[key] for key in line if key in SCORES} for line in lines]
        if number % 100 == 0:
            metrics = stretched(metrics, LONG_STEPS)
            own["total_steps"] = LONG_STEPS
        yield (
            name,
            {
                **original,
                "run_summary.json": json.dumps(own, indent=2).encode(),
                "metrics.jsonl": "".join(json.dumps(line) + "\n" for line in metrics).encode(),
            },
        )


SCORES = ("reward_mean", "eval_score")


def stretched(lines: list[dict[str, Any]], steps: int) -> list[dict[str, Any]]:
    """Return the lines of a run's steps again and again, as those of one long run."""
    each = [line for line in lines if "loss" in line]
    return [{**each[step % len(each)], "step": step + 1, "total_steps": steps} for step in range(steps)]


def fill(s3: S3Server, made: Iterator[tuple[str, dict[str, bytes]]]) -> None:
    """Write records as jobs in a cluster do. What is only listed is put where the server keeps its objects."""
    store = open_store(f"s3://{BUCKET}/{FOLDER}", s3.secret())

    def put(one: tuple[str, dict[str, bytes]]) -> None:
        name, files = one
        record = f"{name}/runs/0001"
        for path, data in files.items():
            store.put(f"{record}/{path}", data)
        store.put(f"{record}/run.json", json.dumps({"job": name}).encode())
        listed = [f"{record}/{path}" for path in OTHERS]
        for path in [*listed, f"{name}/latest.json", *(f"{name}/iter_0000030/{path}" for path in CHECKPOINT)]:
            target = s3.root / BUCKET / FOLDER / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(b"-")

    for some in batched(made, BATCH):
        in_parallel(put, some, WRITERS)


def floor(store: Store, uri: str, keys: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return what the store alone takes: all pages of a listing, and three files of one run."""
    from lorarl_trainer.storage.credentials import client_for
    from lorarl_trainer.storage.uri import parse_uri

    client = client_for(parse_uri(uri), keys, 60.0, "uri")
    seconds, count = timed(lambda: sum(len(page) for page in obstore.list(client)))
    rows = [(f"floor: listing {count:,} objects of the bucket, {count / seconds:,.0f} a second", show(seconds), "")]
    one, _ = timed(lambda: [store.get(f"sums-00001/runs/0001/{name}") for name in READ])
    return [*rows, ("floor: the files of one run, one at a time", show(one), "")]


def measured(what: str, place: str, keys: Mapping[str, str], cache: Path, count: int) -> list[tuple[str, str, str]]:
    """Return how long the first look takes, and the pages after a restart. Each page is the median of several."""
    rows = []
    with served(place, keys, cache) as (url, began):
        while read(url).count('class="card doing"') or f">{count:,} runs<" not in read(url):
            time.sleep(0.2)
        rows.append(("first look, nothing kept from before", show(time.perf_counter() - began), ""))
    with served(place, keys, cache) as (url, began):
        read(url)
        rows.append(("`lorarl dashboard` until its first page", show(time.perf_counter() - began), ""))
        short = [run_of(url, f"sums-{number:05}") for number in range(1, SHOWS + 1)]
        long = [run_of(url, f"sums-{100 * number:05}") for number in range(1, SHOWS + 1)]
        pages = {
            "first page": [""] * SHOWS,
            "sorted by result": ["?sort=result"] * SHOWS,
            "filtered": ["?text=0012&state=succeeded"] * SHOWS,
            "curves of a run of 30 steps, opened for the first time": [f"run/{run}/" for run in short],
            f"curves of a run of {LONG_STEPS:,} steps, opened for the first time": [f"run/{run}/" for run in long],
            "curves of eight runs over one another": [f"compare?run={'&run='.join([*short, long[0]])}"] * SHOWS,
        }
        for name, addresses in pages.items():
            once = statistics.median(timed(partial(read, url + address))[0] for address in addresses)
            rows.append((name, show(once), target_of(name)))
    return [(f"{what}: {name}", reached, target) for name, reached, target in rows]


@contextmanager
def served(place: str, keys: Mapping[str, str], cache: Path) -> Iterator[tuple[str, float]]:
    """Run the command; yield its address, and when it was started."""
    command = [sys.executable, "-m", "lorarl_trainer.cli", "dashboard", place, "--port", "0"]
    environment = {**os.environ, **keys, "LORARL_CACHE": str(cache)}
    began = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found, "lorarl dashboard did not start"
            yield found[0], began
        finally:
            process.terminate()


def read(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        text: str = answer.read().decode()
        return text


def target_of(name: str) -> str:
    return "<= 0.5 s" if "of a run" in name else "" if "eight" in name else "<= 1.0 s"


def run_of(url: str, name: str) -> str:
    found = re.search(r"run/([0-9a-f]{16})/", read(f"{url}?text={name}"))
    assert found, name
    return found[1]


def timed[T](work: Callable[[], T]) -> tuple[float, T]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def show(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


if __name__ == "__main__":
    main()
