"""Measures adapters on held-out rows: greedy answers of vLLM with LoRA, the same for both systems.

One process serves a whole benchmark, since its start takes longer than a measurement. It reads a JSON object per line,
{"data": FOLDER, "rows": N, "adapter": FOLDER or null}, and answers each with {"right": share, "score": mean}.

python -m recipes.held_out MODEL
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from recipes.data import Row, read
from recipes.reward import RIGHT, scored
from recipes.tasks import RECIPES, Settings

GIBIBYTE = 1 << 30


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")  # vLLM prints too
    os.dup2(2, 1)
    evaluator = Evaluator(Path(sys.argv[1]))
    for line in sys.stdin:
        asked = json.loads(line)
        found = evaluator.measure(Path(asked["data"]), asked["rows"], asked["adapter"])
        print(json.dumps(found), file=answers, flush=True)


class Evaluator:
    """vLLM on the base model. It may use a few GiB of the GPU, beside the system that is measured later."""

    def __init__(self, model: Path) -> None:
        os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1")
        import torch
        from vllm import LLM

        settings = Settings()
        longest = max(recipe.response_tokens for recipe in RECIPES.values())
        on_gpu = torch.cuda.is_available()
        self.llm = LLM(
            str(model),
            dtype="bfloat16" if on_gpu else "float32",
            max_model_len=settings.prompt_tokens + longest,
            max_num_seqs=512 if on_gpu else 64,
            enable_lora=True,
            max_lora_rank=settings.rank,
            max_loras=1,
            enforce_eager=not on_gpu,
            kv_cache_memory_bytes=(8 if on_gpu else 1) * GIBIBYTE,
            **({"gpu_memory_utilization": 0.2} if on_gpu else {"block_size": 16}),
        )
        self.adapters = 0

    def measure(self, data: Path, count: int, adapter: str | None) -> dict[str, float]:
        """Return the share of right answers on a recipe's first held-out rows, and the mean score."""
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        request = None
        if adapter is not None:
            self.adapters += 1
            request = LoRARequest(f"adapter-{self.adapters}", self.adapters, adapter)
        rows = held_out(data)[:count]
        sampling = SamplingParams(temperature=0.0, max_tokens=RECIPES[rows[0]["recipe"]].response_tokens)
        outputs = self.llm.generate(self.prompts(data)[:count], sampling, lora_request=request, use_tqdm=False)
        return shares(rows, [output.outputs[0].text for output in outputs])

    @cache  # noqa: B019 - there is one evaluator
    def prompts(self, data: Path) -> list[Any]:
        """Return the rows' prompts in the model's chat template."""
        tokenizer = self.llm.get_tokenizer()
        return [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": row["prompt"]}], add_generation_prompt=True, tokenize=False
            )
            for row in held_out(data)
        ]


def shares(rows: Sequence[Row], completions: Sequence[str]) -> dict[str, float]:
    """Return the share of right completions, and the mean score."""
    scores = [
        scored(row["recipe"], text, row["answer"], row["entry"]) for row, text in zip(rows, completions, strict=True)
    ]
    return {"right": statistics.fmean(score >= RIGHT for score in scores), "score": statistics.fmean(scores)}


@cache
def held_out(data: Path) -> list[Row]:
    return read(data, "held_out")


if __name__ == "__main__":
    main()
