"""The learning run behind `make demo-gpu`: a small model learns to carry and to borrow, with GRPO, on one GPU.

It makes the base model and the prompts, and runs the manifest as anyone would (`lorarl run`). It measures held-out
accuracy before and after in another process that only uses transformers and PEFT, and draws the curve from the run's
metrics.jsonl. out/arithmetic/summary.json has the figures.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

from demo import ROOT, adapter_folder, run_step
from lorarl_trainer.progress import METRICS, read_rows, read_summary
from lorarl_trainer.progress.plots import outcome, to_svg

OUT = ROOT / "out" / "arithmetic"
RUN = OUT / "run"
MANIFEST = ROOT / "examples" / "arithmetic-gpu.yaml"
LEAST_GAIN = 0.3


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--picture", type=Path, help="also draw the curve into this SVG file")
    parser.add_argument(
        "--base", nargs="*", default=[], metavar="NAME=VALUE", help="options of make_base.py: layers=4 steps=500"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="PATH=VALUE", help="change the manifest, as `lorarl run` does"
    )
    chosen = parser.parse_args()
    started = time.monotonic()
    options = [part for option in chosen.base for part in (f"--{option.partition('=')[0]}", option.partition("=")[2])]
    run_step(
        "base model and prompts", [sys.executable, ROOT / "examples/arithmetic/make_base.py", "--out", OUT, *options]
    )
    prepared = time.monotonic()

    shutil.rmtree(RUN, ignore_errors=True)
    # Never, because this always trains, whatever an earlier run left.
    settings = [part for change in ["spec.checkpoint.resume=Never", *chosen.set] for part in ("--set", change)]
    run_step("training", [sys.executable, "-m", "lorarl_trainer.cli", "run", MANIFEST, "--out", RUN, *settings])
    trained = time.monotonic()
    run = read_summary(RUN)

    adapter, accuracy_file = adapter_folder(run["adapter_uri"]), OUT / "accuracy.json"
    data: list[str | Path] = [
        "--base",
        OUT / "base",
        "--adapter",
        adapter,
        "--held-out",
        OUT / "held_out.jsonl",
        "--out",
        accuracy_file,
    ]
    evaluate = [sys.executable, ROOT / "examples/addition/evaluate.py", *data]
    run_step("accuracy before and after, with only transformers and PEFT", evaluate)

    accuracy = json.loads(accuracy_file.read_text())
    summary = {
        **accuracy,
        "by_vllm": {"before": run["eval_before"], "after": run["eval_after"]},
        "steps": run["step"],
        "base_model_seconds": round(prepared - started, 1),
        "train_seconds": round(run["train_seconds"], 1),
        "run_seconds": round(trained - prepared, 1),
        "mean_abs_logprob_diff": run["mean_abs_logprob_diff"],
    }
    (OUT / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"\n{json.dumps(summary, indent=1)}\n")
    if chosen.picture:
        before, after = accuracy["accuracy_before"], accuracy["accuracy_after"]
        title = f"Held-out accuracy {before:.0%} to {after:.0%} in {run['train_seconds']:.0f} s of training"
        chosen.picture.parent.mkdir(parents=True, exist_ok=True)
        chosen.picture.write_bytes(to_svg(lambda: outcome(read_rows(RUN / METRICS), "grpo", title)))
    gain = accuracy["accuracy_after"] - accuracy["accuracy_before"]
    if gain < LEAST_GAIN:
        sys.exit(
            f"demo: held-out accuracy changed by {100 * gain:+.1f} points, expected at least {100 * LEAST_GAIN:+.0f}"
        )


if __name__ == "__main__":
    main()
