"""Makes the base model and the rows of examples/guess-cpu.yaml: a tiny Qwen3 that knows how the game is played.

It is pretrained here, within half a minute on two cores, on games in which 70% of the guesses ignore what was said. So
it writes digits, and rarely uses an answer: reinforcement learning has to make a habit of that.

Files in --out: base/, as that of examples/addition with a chat template, and train.jsonl, a row for each digit.
The same --seed and --threads give the same files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from addition import make_base as addition
from addition.make_base import EOS, TOKEN_ID, make_model, make_tokenizer, update

TEMPLATE = "{% for m in messages %}{{ m.content }}{{ '<|eos|>' if m.role == 'assistant' else '\n' }}{% endfor %}"
PROMPT, TURNS, DIGITS = "guess 0 to 9", 4, 10
IGNORED = 0.7
"""Share of the pretraining's guesses that ignore what was said. It decides how much is left to learn."""
STEPS, BATCH_SIZE, LEARNING_RATE = 250, 64, 1e-3


def game(generator: random.Random) -> list[tuple[str, bool]]:
    """Return a game as pieces of text, each with whether the model writes it."""
    secret, low, high = generator.randrange(DIGITS), 0, DIGITS - 1
    pieces = [(f"{PROMPT}\n", False)]
    for _ in range(TURNS):
        ignores = generator.random() < IGNORED
        guess = generator.randrange(DIGITS) if ignores else generator.randint(low, max(low, high))
        pieces.append((str(guess), True))
        if guess == secret:
            break
        low, high = (max(low, guess + 1), high) if secret > guess else (low, min(high, guess - 1))
        pieces.append(("higher\n" if secret > guess else "lower\n", False))
    return pieces


def batch(generator: random.Random) -> tuple[Any, Any]:
    """Return token ids and labels, both (BATCH_SIZE, longest). Only what the model writes has labels."""
    import torch

    rows: list[list[tuple[int, int]]] = []
    for _ in range(BATCH_SIZE):
        row: list[tuple[int, int]] = []
        for text, own in game(generator):
            ids = [TOKEN_ID[character] for character in text] + ([TOKEN_ID[EOS]] if own else [])
            row += [(token, token if own else -100) for token in ids]
        rows.append(row)
    longest = max(map(len, rows))
    padded = torch.tensor([row + [(0, -100)] * (longest - len(row)) for row in rows])
    return padded[..., 0], padded[..., 1]


def stamp_of(seed: int, threads: int) -> str:
    """Return a digest of what the result depends on: this file, that of the addition, and the arguments."""
    return hashlib.sha256(Path(__file__).read_bytes() + addition.stamp_of(seed, threads).encode()).hexdigest()


def make(out: Path, seed: int, threads: int) -> None:
    """Write model and rows into `out`. The stamp comes last, so that an interrupted run is repeated."""
    import torch
    from transformers import set_seed

    addition.stamp_file(out).unlink(missing_ok=True)
    torch.set_num_threads(threads)
    set_seed(seed)
    model, generator = make_model(), random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    for step in range(1, STEPS + 1):
        loss = update(model, optimizer, *batch(generator))
        if step % 50 == 0:
            print(f"base model: step {step}/{STEPS}, loss {loss:.3f}", flush=True)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    model.save_pretrained(out / "base")
    tokenizer.save_pretrained(out / "base")
    rows = ({"prompt": PROMPT, "answer": str(digit)} for digit in range(DIGITS))
    (out / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    addition.stamp_file(out).write_text(stamp_of(seed, threads))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--seed", type=int, default=0, help="seed of the games and the weights")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    arguments = parser.parse_args()
    stamp = addition.stamp_file(arguments.out)
    if stamp.is_file() and stamp.read_text() == stamp_of(arguments.seed, arguments.threads):
        print(f"base model: {arguments.out} is up to date")
        return
    make(arguments.out, arguments.seed, arguments.threads)
    print(f"base model: written to {arguments.out}")


if __name__ == "__main__":
    main()
