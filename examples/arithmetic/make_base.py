"""Makes the base model and the data of the GPU demo: a small Qwen3 that can carry and borrow, but mostly does not.

The task is to add or subtract two numbers of three digits: `127+385=` has the answer `512`, and `812-345=` has `467`.
As in the CPU demo (examples/addition), the base is not an honest beginner. It is pretrained here, in about a minute on
a GPU, on a corpus in which 65% of the rows drop their carries and borrows (`127+385=402`). So it has the right habit,
but rarely follows it, and reinforcement learning has to strengthen it. A run of two minutes can show that, and no more.

Files in --out:
    base/           Qwen3, 25M parameters, bf16, with a character-level tokenizer. Its heads of 64 are the smallest that
                    vLLM's GPU kernels take.
    train.jsonl     20,000 rows {"prompt": "127+385=", "answer": "512"}
    held_out.jsonl  1,024 such rows. Neither they nor their mirror images (385+127) are in train.jsonl or the
                    pretraining.

    python examples/arithmetic/make_base.py --out out/arithmetic
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from addition.make_base import EOS, PAD, TOKEN_ID, VOCABULARY, make_tokenizer, stamp_file

HELD_OUT, TRAIN = 1024, 20_000
DROPPED_CARRIES = 0.65
"""Share of the corpus whose carries and borrows are dropped. It decides how much is left to learn."""
SHORTER = 0.2
"""Share of the corpus with numbers of one or two digits, which teach carrying sooner."""
WIDTH = len("999+999=1998") + 1
"""Length of the longest row with its end."""
END, FILL = "|", " "
"""Characters for a row's end and its padding, until rows are token ids. The task uses neither."""

type Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Rows:
    """Tasks, [N] each: both numbers, and whether they are subtracted. Then the first is not the smaller one."""

    first: Ints
    second: Ints
    minus: np.ndarray[Any, np.dtype[np.bool_]]

    @property
    def codes(self) -> Ints:
        """A number that a row only shares with its mirror image, and with the same pair under the other sign."""
        return np.minimum(self.first, self.second) * 1000 + np.maximum(self.first, self.second)

    def prompts(self) -> list[str]:
        """Return the tasks as text."""
        return [
            f"{a}{'-' if m else '+'}{b}="
            for a, b, m in zip(self.first.tolist(), self.second.tolist(), self.minus.tolist(), strict=True)
        ]

    def answers(self) -> Ints:
        """Return the right answers."""
        return np.where(self.minus, self.first - self.second, self.first + self.second)

    def answers_digit_by_digit(self) -> Ints:
        """Return the answers with every carry and borrow dropped: 127 + 385 = 402."""
        total = np.zeros_like(self.first)
        for place in (1, 10, 100):
            a, b = self.first // place % 10, self.second // place % 10
            total += np.where(self.minus, a - b, a + b) % 10 * place
        return total

    def take(self, which: Any) -> Rows:
        """Return some of the rows."""
        return Rows(self.first[which], self.second[which], self.minus[which])


def draw(count: int, lowest: int, random: np.random.Generator) -> Rows:
    """Return random tasks with numbers from `lowest` to 999."""
    pair = random.integers(lowest, 1000, size=(2, count))
    minus = random.random(count) < 0.5
    return Rows(np.where(minus, pair.max(axis=0), pair[0]), np.where(minus, pair.min(axis=0), pair[1]), minus)


def split(seed: int) -> tuple[Rows, Rows]:
    """Return the held-out rows, and training rows without their pairs of numbers."""
    random = np.random.default_rng(seed)
    drawn = draw(4 * HELD_OUT, 100, random)
    held_out = drawn.take(np.unique(drawn.codes, return_index=True)[1][random.permutation(HELD_OUT)])
    train = draw(2 * TRAIN, 100, random)
    return held_out, train.take(~np.isin(train.codes, held_out.codes)).take(slice(TRAIN))


def corpus(count: int, held_out: Rows, random: np.random.Generator) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return token ids of up to `count` rows, [N, WIDTH]: prompt, answer (mostly without carries), end, padding."""
    long, short = draw(int(count * (1 - SHORTER)), 100, random), draw(int(count * SHORTER), 0, random)
    short = Rows(short.first % 100, short.second % 100, np.zeros_like(short.minus))
    texts: list[str] = []
    for rows in (long.take(~np.isin(long.codes, held_out.codes)), short):
        dropped = random.random(len(rows.first)) < DROPPED_CARRIES
        answers = np.where(dropped, rows.answers_digit_by_digit(), rows.answers())
        texts += [
            f"{prompt}{answer}{END}".ljust(WIDTH, FILL)
            for prompt, answer in zip(rows.prompts(), answers.tolist(), strict=True)
        ]
    table = np.zeros(256, dtype=np.uint8)
    for character, token in TOKEN_ID.items():
        if len(character) == 1:
            table[ord(character)] = token
    table[ord(END)], table[ord(FILL)] = TOKEN_ID[EOS], TOKEN_ID[PAD]
    characters = np.frombuffer("".join(texts).encode(), dtype=np.uint8).reshape(-1, WIDTH)
    return table[random.permutation(characters)]


def make_model(hidden_size: int, layers: int) -> Any:
    """Return a Qwen3 with random weights and heads of 64."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    heads = hidden_size // 64
    config = Qwen3Config(
        vocab_size=len(VOCABULARY),
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=64,
        max_position_embeddings=256,
        rope_theta=10_000.0,
        initializer_range=0.02,
        tie_word_embeddings=True,
        pad_token_id=TOKEN_ID[PAD],
        eos_token_id=TOKEN_ID[EOS],
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def pretrain(model: Any, ids_N_W: Any, steps: int, batch_size: int, learning_rate: float) -> None:
    """Train on the answers of the corpus, [N, W], one batch per step, with a line of progress every ten seconds."""
    import torch

    device = ids_N_W.device
    ids_N_W = ids_N_W.long()
    # Train on the tokens after the equals sign, except padding.
    answer_N_W = ((ids_N_W == TOKEN_ID["="]).cumsum(1) > 0).roll(1, dims=1) & (ids_N_W != TOKEN_ID[PAD])
    answer_N_W[:, 0] = False
    labels_N_W = ids_N_W.masked_fill(~answer_N_W, -100)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.05, fused=device.type == "cuda"
    )
    # Linear warm-up, then linear decay to a twentieth over the last third.
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 100) * min(1.0, max(0.05, (steps - step) / (steps / 3)))
    )
    started = shown = time.monotonic()
    for step in range(1, steps + 1):
        rows = torch.arange((step - 1) * batch_size, step * batch_size, device=device) % len(ids_N_W)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(ids_N_W[rows]).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), labels_N_W[rows, 1:].flatten(), ignore_index=-100
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        now = time.monotonic()
        if now - shown >= 10 or step == steps:
            print(f"base model: step {step}/{steps}, loss {loss.item():.3f}, {now - started:.0f} s", flush=True)
            shown = now


def stamp_of(chosen: argparse.Namespace) -> str:
    """Return a digest of what the result depends on: this file and its options."""
    options = {name: value for name, value in vars(chosen).items() if name != "out"}
    return hashlib.sha256(Path(__file__).read_bytes() + repr(sorted(options.items())).encode()).hexdigest()


def make(out: Path, chosen: argparse.Namespace) -> None:
    """Write model and data into `out`. The stamp comes last, so that an interrupted run is repeated."""
    import torch
    from transformers import set_seed
    from transformers.utils import logging

    logging.disable_progress_bar()
    out.mkdir(parents=True, exist_ok=True)
    stamp_file(out).unlink(missing_ok=True)
    held_out, train = split(chosen.seed)
    for rows, name in ((held_out, "held_out.jsonl"), (train, "train.jsonl")):
        lines = (
            {"prompt": prompt, "answer": str(answer)}
            for prompt, answer in zip(rows.prompts(), rows.answers().tolist(), strict=True)
        )
        (out / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    set_seed(chosen.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = make_model(chosen.hidden_size, chosen.layers).to(device)
    ids = corpus(chosen.steps * chosen.batch_size, held_out, np.random.default_rng(chosen.seed + 1))
    pretrain(model, torch.from_numpy(ids).to(device), chosen.steps, chosen.batch_size, chosen.learning_rate)
    model.to(torch.bfloat16 if device == "cuda" else torch.float32).save_pretrained(out / "base")
    make_tokenizer().save_pretrained(out / "base")
    stamp_file(out).write_text(stamp_of(chosen))
    print(f"base model: {sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters, written to {out}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--seed", type=int, default=0, help="seed of the split, the corpus and the weights")
    parser.add_argument("--hidden-size", type=int, default=512, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2000, help="steps of pretraining")
    parser.add_argument("--batch-size", type=int, default=1024, help="rows per step")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    chosen = parser.parse_args()
    stamp = stamp_file(chosen.out)
    if stamp.is_file() and stamp.read_text() == stamp_of(chosen):
        print(f"base model: {chosen.out} is up to date")
        return
    make(chosen.out, chosen)


if __name__ == "__main__":
    main()
