"""Measures the held-out greedy accuracy of a base model, and of the same model with a PEFT adapter.

This only uses transformers and PEFT, and none of lorarl's code. It measures the published adapter as anyone would load
it. An answer is correct if its last number is the row's answer, as for `reward: {type: numeric}`.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAX_NEW_TOKENS = 12
BATCH_SIZE = 64
SHOWN = 5
"""Questions whose answers are shown."""


def is_correct(completion: str, answer: str) -> bool:
    """Return whether a completion's last number is the answer."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", completion)
    return bool(numbers) and float(numbers[-1]) == float(answer)


def gain_interval(before: Sequence[bool], after: Sequence[bool]) -> tuple[float, float]:
    """Return the 95% confidence interval of the gain in accuracy, from the differences of the same questions."""
    gains = [float(new) - float(old) for old, new in zip(before, after, strict=True)]
    mean, error = statistics.fmean(gains), statistics.stdev(gains) / len(gains) ** 0.5
    return mean - 1.96 * error, mean + 1.96 * error


def complete(model: Any, tokenizer: Any, prompts: Sequence[str]) -> list[str]:
    """Return greedy completions of questions in the model's chat template. Batches are padded on the left."""
    import torch

    completions: list[str] = []
    for start in range(0, len(prompts), BATCH_SIZE):
        chats = [[{"role": "user", "content": prompt}] for prompt in prompts[start : start + BATCH_SIZE]]
        batch = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            out = model.generate(**batch, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
        completions += tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    return completions


def evaluate(base: Path, adapter: Path, rows: Sequence[dict[str, str]], threads: int) -> dict[str, Any]:
    """Return the accuracy of the base model and with the adapter, and some of the answers."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    prompts, answers = [row["prompt"] for row in rows], [row["answer"] for row in rows]
    tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    before = complete(model, tokenizer, prompts)
    after = complete(PeftModel.from_pretrained(model, adapter).eval(), tokenizer, prompts)
    right = [[is_correct(*pair) for pair in zip(texts, answers, strict=True)] for texts in (before, after)]
    return {
        "held_out": len(rows),
        "accuracy_before": statistics.fmean(right[0]),
        "accuracy_after": statistics.fmean(right[1]),
        "gain_interval": gain_interval(*right),
        "answers": [
            {"question": prompt, "answer": answer, "before": old, "after": new}
            for prompt, answer, old, new in list(zip(prompts, answers, before, after, strict=True))[:SHOWN]
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base", type=Path, required=True, help="folder of the base model")
    parser.add_argument("--adapter", type=Path, required=True, help="folder of a PEFT adapter")
    parser.add_argument("--held-out", type=Path, required=True, help="JSONL with prompt and answer")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.held_out.read_text().splitlines()]
    result = evaluate(arguments.base, arguments.adapter, rows, arguments.threads)
    arguments.out.write_text(json.dumps(result) + "\n")
    figures = {name: value for name, value in result.items() if name != "answers"}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
