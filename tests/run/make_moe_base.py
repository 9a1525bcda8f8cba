"""Writes a mixture of experts that can add but mostly errs by one, and sums to learn from. Run with: FOLDER.

Texts are `27+5=32` and the end. In 65% of the texts of the pretraining, the answer is one too large. So the model's
greedy answers are wrong, and the right habit is there to be strengthened: a few steps do what would take thousands.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

from run.make_base import END, SIZES
from support.tiny_tokenizers import write_tokenizer

WRONG = 0.65
STEPS, BATCH, RATE = 200, 128, 3e-3
HELD_OUT = 64


def pairs() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return what is learnt from, and what is held out."""
    every = [(a, b) for a in range(10, 100) for b in range(10)]
    random.Random(0).shuffle(every)
    return every[HELD_OUT:], every[:HELD_OUT]


def batch(tokenizer: Any, train: Sequence[tuple[int, int]], draw: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and labels, both [BATCH, longest]. Only answers and ends have labels."""
    rows = []
    for _ in range(BATCH):
        a, b = draw.choice(train)
        answer = a + b + (draw.random() < WRONG)
        rows.append((tokenizer.encode(f"{a}+{b}="), [*tokenizer.encode(str(answer)), END]))
    longest = max(len(given) + len(learnt) for given, learnt in rows)
    tokens, labels = torch.zeros(BATCH, longest, dtype=torch.long), torch.full((BATCH, longest), -100)
    for row, (given, learnt) in enumerate(rows):
        tokens[row, : len(given) + len(learnt)] = torch.tensor(given + learnt)
        labels[row, len(given) : len(given) + len(learnt)] = torch.tensor(learnt)
    return tokens, labels


def main(folder: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = Qwen3MoeConfig(
        **SIZES,
        intermediate_size=128,
        moe_intermediate_size=64,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        initializer_range=0.05,
    )
    model = Qwen3MoeForCausalLM(config)
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(folder / "base", template=None))
    train, held_out = pairs()
    draw, optimizer = random.Random(0), torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98))
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 30, max(0.05, (STEPS - step) / (0.3 * STEPS)))
        tokens, labels = batch(tokenizer, train, draw)
        logits = model(tokens).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"loss {loss.item():.3f}")
    model.save_pretrained(folder / "base")
    for name, part in (("train", train), ("held_out", held_out)):
        rows = [json.dumps({"prompt": f"{a}+{b}=", "answer": str(a + b)}) for a, b in part]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
