"""Records how far vLLM's and the trainer's log-probabilities of the same tokens are apart, token by token.

python benchmarks/bench_agreement.py --model FOLDER --out FOLDER --name chat            with a chat template's prompts
python benchmarks/bench_agreement.py --model FOLDER --out FOLDER --name cold --temperature 0.6 --response-tokens 7000
python benchmarks/bench_agreement.py --model FOLDER --out FOLDER --name chat --layers   also layer by layer

Each run writes OUT/NAME-base.npz (no adapter) and OUT/NAME-probe.npz (a probe of about half a nat): of each token the
difference in nats (engine - trainer), the trainer's log-probability and the position; and each completion's length.
tests/unit/trainer/samples/test_recorded_agreement.py resamples steps from such files and counts false alarms.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("crds", "trainer_image")]

from lorarl_api.load import load_job  # noqa: E402
from lorarl_trainer.devices.registry import get_device  # noqa: E402

VERSION = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--question", default="What is {a} minus {b}? Answer with only the number.")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--response-tokens", type=int, default=32)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--gpus", type=int, default=1, choices=(0, 1))
    parser.add_argument("--gain", type=float, default=0.08, help="the largest element of the probe's B")
    parser.add_argument("--layers", action="store_true", help="compare hidden states after each layer (one GPU)")
    chosen = parser.parse_args()
    os.environ.update(get_device(chosen.gpus).environment(threads=os.cpu_count() or 1))
    chosen.out.mkdir(parents=True, exist_ok=True)
    Recorder(chosen).run()


class Recorder:
    """A worker of one device, and the prompts."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        from lorarl_trainer.workers.worker import Rank, Worker

        self.chosen = chosen
        self.prompts = [prompt for prompt in prompts_of(chosen) for _ in range(chosen.group)]
        spec = load_job(json.dumps(manifest(chosen, max(map(len, self.prompts))))).spec
        self.worker = Worker(spec, Rank(0, 1, 0, None, None))
        self.worker.start(chosen.model, (2,), None)
        assert self.worker.engine is not None
        self.engine = self.worker.engine

    def run(self) -> None:
        from lorarl_trainer.lora.config import Probe

        self.record("base", Probe(0.0), VERSION)
        if self.chosen.layers:
            self.layers()
        self.record("probe", Probe(self.chosen.gain), VERSION + 1)

    def record(self, kind: str, probe: Any, version: int) -> None:
        """Generate with a probe, score with the trainer, and write both."""
        import numpy as np

        from lorarl_trainer.samples.agreement import positions_of
        from lorarl_trainer.samples.requests import GenerationRequest
        from lorarl_trainer.samples.sample import Completion, Sample
        from lorarl_trainer.samples.wire import Samples

        self.worker.hold_probe(probe)
        self.worker.sync(version, verify=True)
        made: dict[int, Completion] = {}
        requests = {at: GenerationRequest(prompt, seed=at) for at, prompt in enumerate(self.prompts)}
        self.worker.submit(requests)
        for chunk in self.worker.results(len(requests)):
            made.update(zip(chunk.numbers, chunk.completions, strict=True))
        completions = [made[index] for index in range(len(made))]
        samples = Samples(
            Sample(np.concatenate([prompt, completion.tokens]), len(prompt), 0.0, completion.logprobs)
            for prompt, completion in zip(self.prompts, completions, strict=True)
        )
        logprobs = np.concatenate(self.worker.log_probabilities(samples, self.chosen.temperature))
        lengths = [len(completion.tokens) for completion in completions]
        difference = np.concatenate([completion.logprobs for completion in completions]) - logprobs
        np.savez_compressed(
            self.chosen.out / f"{self.chosen.name}-{kind}.npz",
            d=difference.astype(np.float16),
            lp=logprobs.astype(np.float16),
            pos=positions_of([len(prompt) for prompt in self.prompts], lengths).astype(np.int32),
            lengths=np.array(lengths),
        )
        figures = {
            "name": f"{self.chosen.name}-{kind}",
            "tokens": len(difference),
            "mean": float(np.abs(difference).mean()),
            "k3": float((np.exp(-difference) - 1 + difference).mean()),
            "noise": float(np.abs(difference).sum() / (1 - np.exp(logprobs)).sum()),
            "entropy": float(-logprobs.mean()),
        }
        print(json.dumps(figures), flush=True)

    def layers(self) -> None:
        """Print how far the hidden states of one prompt are apart after each layer, relative to their size."""
        import numpy as np
        from megatron.core.utils import unwrap_model

        from lorarl_trainer.samples.requests import GenerationRequest
        from lorarl_trainer.samples.sample import Sample
        from lorarl_trainer.samples.wire import Samples

        tokens = np.random.default_rng(0).integers(1000, 40_000, len(max(self.prompts, key=len))).tolist()
        states: dict[tuple[str, int], Any] = {}

        def keep_engine(index: int, output: Any) -> None:
            if len(output[0]) == len(tokens):  # hidden state and residual, of the prompt
                states["engine", index] = sum(output).float().clone()

        def keep_trainer(index: int, output: Any) -> None:
            states["trainer", index] = output[0].detach().float().flatten(0, 1)[: len(tokens)].clone()

        engine_layers = self.engine.engine.vllm_worker.model_runner.model.model.layers
        trainer_layers = unwrap_model(self.worker.backend.model.module).decoder.layers
        hooks = [
            layer.register_forward_hook(lambda *all_of, index=index, keep=keep: keep(index, all_of[2]))
            for layers, keep in ((engine_layers, keep_engine), (trainer_layers, keep_trainer))
            for index, layer in enumerate(layers)
        ]
        self.engine.submit({0: GenerationRequest(tokens, seed=0, max_tokens=1)})
        list(self.engine.results())
        sample = Sample(np.array([*tokens, 5]), len(tokens), 0.0, np.zeros(1, np.float32))
        self.worker.log_probabilities(Samples([sample]), 1.0)
        for hook in hooks:
            hook.remove()
        for index in range(len(trainer_layers)):
            engine, trainer = states["engine", index], states["trainer", index]
            apart = float((engine - trainer).norm() / trainer.norm())
            equal = float((engine == trainer).float().mean())
            print(json.dumps({"layer": index + 1, "relative": apart, "equal": equal}), flush=True)


def prompts_of(chosen: argparse.Namespace) -> Sequence[list[int]]:
    """Return the question with numbers in the model's chat template; random tokens for a model without one."""
    import numpy as np
    from transformers import AutoTokenizer

    draw = np.random.default_rng(0)
    tokenizer = AutoTokenizer.from_pretrained(chosen.model)
    if tokenizer.chat_template is None:
        vocabulary = json.loads((chosen.model / "config.json").read_text())["vocab_size"]
        return [draw.integers(5, vocabulary - 5, 64).tolist() for _ in range(chosen.prompts)]
    questions = [
        chosen.question.format(a=high, b=low)
        for low, high in (sorted(draw.integers(10, 99, 2).tolist()) for _ in range(chosen.prompts))
    ]
    chats = [[{"role": "user", "content": text}] for text in questions]
    return [list(tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]) for chat in chats]


def manifest(chosen: argparse.Namespace, prompt_tokens: int) -> dict[str, Any]:
    """Return the job. A manifest is YAML, and JSON is YAML."""
    spec: dict[str, Any] = {
        "model": {"uri": f"file://{chosen.model}"},
        "adapter": {"rank": 32, "alpha": 64, "targetModules": ["all-linear"]},
        "algorithm": {"type": "grpo", "groupSize": chosen.group},
        "reward": {"type": "exact"},
        "data": {"train": {"uri": f"file://{chosen.model}/none.jsonl"}},
        "rollout": {
            "promptsPerStep": chosen.prompts,
            "maxPromptTokens": prompt_tokens,
            "maxResponseTokens": chosen.response_tokens,
            "temperature": chosen.temperature,
        },
        "trainer": {"steps": 1},
        "checkpoint": {"uri": f"file://{chosen.out}/checkpoints"},
        "cluster": {"gpusPerNode": chosen.gpus},
    }
    return {"apiVersion": "lorarl.io/v1alpha1", "kind": "LoRARLJob", "metadata": {"name": "agreement"}, "spec": spec}


if __name__ == "__main__":
    main()
