"""Measures the held-out greedy accuracy of a base model, and of the same model with a PEFT adapter.

This only uses transformers and PEFT, and none of lorarl's code. It measures the published adapter as anyone would load
it. An answer is correct if all of it, up to the end-of-sequence token, is the row's answer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAX_NEW_TOKENS = 5
BATCH_SIZE = 256


def completion_of(token_ids: Sequence[int], eos: int) -> list[int] | None:
    """Return the generated tokens before the end-of-sequence token, or None if the model did not end in time."""
    tokens = list(token_ids)
    return tokens[: tokens.index(eos)] if eos in tokens else None


def share_correct(completions: Sequence[str | None], answers: Sequence[str]) -> float:
    """Return the share of completions that equal their answer. An unfinished one (None) is wrong."""
    return sum(completion == answer for completion, answer in zip(completions, answers, strict=True)) / len(answers)


def complete(model: Any, tokenizer: Any, prompts: Sequence[str]) -> list[str | None]:
    """Return greedy completions. Batches are padded on the left."""
    import torch

    completions: list[str | None] = []
    for start in range(0, len(prompts), BATCH_SIZE):
        batch = tokenizer(list(prompts[start : start + BATCH_SIZE]), return_tensors="pt", padding=True)
        with torch.inference_mode():
            out = model.generate(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                max_new_tokens=MAX_NEW_TOKENS,
                do_sample=False,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
            )
        for row in out[:, batch["input_ids"].shape[1] :].tolist():
            tokens = completion_of(row, tokenizer.eos_token_id)
            completions.append(None if tokens is None else tokenizer.decode(tokens))
    return completions


def evaluate(base: Path, adapter: Path | None, held_out: Path, threads: int) -> dict[str, float | int]:
    """Return the accuracy of the base model and, if an adapter is given, with the adapter."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    rows = [json.loads(line) for line in held_out.read_text().splitlines()]
    prompts, answers = [row["prompt"] for row in rows], [row["answer"] for row in rows]
    tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    result: dict[str, float | int] = {
        "held_out": len(rows),
        "accuracy_before": share_correct(complete(model, tokenizer, prompts), answers),
    }
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter).eval()
        result["accuracy_after"] = share_correct(complete(model, tokenizer, prompts), answers)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base", type=Path, required=True, help="folder of the base model")
    parser.add_argument("--adapter", type=Path, help="folder of a PEFT adapter (default: measure only the base)")
    parser.add_argument("--held-out", type=Path, required=True, help="JSONL with prompt and answer")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    arguments = parser.parse_args()
    result = json.dumps(evaluate(arguments.base, arguments.adapter, arguments.held_out, arguments.threads))
    if arguments.out is not None:
        arguments.out.write_text(result + "\n")
    sys.stdout.write(result + "\n")


if __name__ == "__main__":
    main()
