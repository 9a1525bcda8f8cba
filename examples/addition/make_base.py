"""Makes the demo's base model and its data: a tiny Qwen3 that can carry, but mostly does not.

The task is to add two numbers of two digits: `12+34=` has the answer `46`. The base model is not an honest beginner. It
is pretrained here, within about a minute on two cores, on sums of which 65% have their carries dropped (`27+35=52`). So
it can carry, but rarely does: its greedy answers are right for 28 to 35% of the held-out prompts, depending on the seed
(about 25% need no carry). Reinforcement learning has to strengthen the right habit, which takes tens of steps instead
of thousands. A demo needs no more, and it shows no more.

Files in --out:
    base/           Qwen3, 0.8M parameters, fp32, with a character-level tokenizer
    train.jsonl     rows {"prompt": "12+34=", "answer": "46"}
    held_out.jsonl  512 such rows; neither they nor their mirror images (34+12) are in train.jsonl or in the pretraining
    pairs.jsonl, held_out_pairs.jsonl
                    the same sums as {"prompt": "27+35=", "chosen": "62", "rejected": "52"}, for dpo

The same --seed and --threads give the same files. If --out is up to date, nothing is done.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import string
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HELD_OUT = 512
DROPPED_CARRIES = 0.65
"""Share of the pretraining sums whose carries are dropped. It decides how much is left to learn."""

PAD, EOS, UNK = "<|pad|>", "<|eos|>", "<|unk|>"
VOCABULARY = [PAD, EOS, UNK, *string.digits, *string.ascii_lowercase, *" +-*/=?!.,:;()[]<>'\"\n#$%&"]
TOKEN_ID = {token: index for index, token in enumerate(VOCABULARY)}

STEPS, BATCH_SIZE, LEARNING_RATE = 400, 192, 1e-3


def split_pairs(seed: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return all pairs of two-digit numbers as (train, held out). Train has no held-out pair in either order."""
    generator = random.Random(seed)
    unordered = [(a, b) for a in range(10, 100) for b in range(a, 100)]
    generator.shuffle(unordered)
    held_out = [pair if generator.random() < 0.5 else pair[::-1] for pair in unordered[:HELD_OUT]]
    train = [pair for a, b in unordered[HELD_OUT:] for pair in {(a, b), (b, a)}]
    return sorted(train), held_out


def add_without_carry(a: int, b: int) -> int:
    """Return the sum digit by digit, with every carry dropped: 27 + 35 = 52, 95 + 15 = 0."""
    digits = max(len(str(a)), len(str(b)))
    return int("".join(str((int(x) + int(y)) % 10) for x, y in zip(f"{a:0{digits}}", f"{b:0{digits}}", strict=True)))


def sample_sum(train: Sequence[tuple[int, int]], generator: random.Random) -> tuple[str, str]:
    """Return a pretraining text as (prompt, answer): mostly two digits, and some more or fewer, to learn carrying."""
    kind = generator.random()
    if kind < 0.1:
        a, b = generator.randrange(100, 1000), generator.randrange(100, 1000)
    elif kind < 0.2:
        a, b = generator.randrange(0, 10), generator.randrange(0, 100)
    else:
        a, b = generator.choice(train)
    total = add_without_carry(a, b) if generator.random() < DROPPED_CARRIES else a + b
    return f"{a}+{b}=", str(total)


def make_tokenizer() -> Any:
    """Return a tokenizer in Hugging Face's format: one token per character, no chat template."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = Tokenizer(models.WordLevel(TOKEN_ID, unk_token=UNK))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex(".|\n"), "isolated")
    characters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=characters, pad_token=PAD, eos_token=EOS, unk_token=UNK, bos_token=None
    )


def make_model() -> Any:
    """Return a Qwen3 with random weights: 4 layers, hidden size 128, 4 query and 2 key-value heads, tied embeddings."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(VOCABULARY),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=256,
            rope_theta=10_000.0,
            initializer_range=0.05,
            tie_word_embeddings=True,
            pad_token_id=TOKEN_ID[PAD],
            eos_token_id=TOKEN_ID[EOS],
            bos_token_id=None,
            dtype="float32",
        )
    )


def make_batch(train: Sequence[tuple[int, int]], generator: random.Random) -> tuple[Any, Any]:
    """Return token ids and labels, both (BATCH_SIZE, longest). Only the answer and its end have labels."""
    import torch

    rows = []
    for _ in range(BATCH_SIZE):
        prompt, answer = sample_sum(train, generator)
        rows.append(([TOKEN_ID[c] for c in prompt], [TOKEN_ID[c] for c in answer] + [TOKEN_ID[EOS]]))
    longest = max(len(given) + len(learnt) for given, learnt in rows)
    ids = torch.full((BATCH_SIZE, longest), TOKEN_ID[PAD])
    labels = torch.full((BATCH_SIZE, longest), -100)
    for row, (given, learnt) in enumerate(rows):
        end = len(given) + len(learnt)
        ids[row, :end] = torch.tensor(given + learnt)
        labels[row, len(given) : end] = torch.tensor(learnt)
    return ids, labels


def learning_rate_at(step: int) -> float:
    """Return the learning rate: linear warm-up over 50 steps, constant, linear decay to 5% over the last 30%."""
    decay = max(0.05, (STEPS - step) / (STEPS * 0.3)) if step >= STEPS * 0.7 else 1.0
    return LEARNING_RATE * min(1.0, step / 50) * decay


def update(model: Any, optimizer: Any, ids: Any, labels: Any) -> float:
    """Make one update on the labels, both (rows, tokens), where they are not -100; return the loss before it."""
    import torch

    logits = model(ids).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.item())


def pretrain(model: Any, train: Sequence[tuple[int, int]], seed: int) -> None:
    """Train on the corpus's next tokens, with a line of progress every five seconds."""
    import torch

    generator = random.Random(seed)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    norms = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98))
    started = shown = time.monotonic()
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step)
        ids, labels = make_batch(train, generator)
        loss = update(model, optimizer, ids, labels)
        now = time.monotonic()
        if now - shown >= 5 or step == STEPS:
            print(f"base model: step {step}/{STEPS}, loss {loss:.3f}, {now - started:.0f} s", flush=True)
            shown = now


def write_rows(path: Path, pairs: Sequence[tuple[int, int]]) -> None:
    """Write one JSON object per line, with prompt and right answer."""
    path.write_text("".join(json.dumps({"prompt": f"{a}+{b}=", "answer": str(a + b)}) + "\n" for a, b in pairs))


def wrong_answer(a: int, b: int) -> int:
    """Return the sum without its carries; for a sum that has none, the next number."""
    dropped = add_without_carry(a, b)
    return dropped if dropped != a + b else a + b + 1


def write_pairs(path: Path, pairs: Sequence[tuple[int, int]]) -> None:
    """Write one JSON object per line, with prompt, right answer and wrong answer."""
    path.write_text(
        "".join(
            json.dumps({"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": str(wrong_answer(a, b))}) + "\n"
            for a, b in pairs
        )
    )


def stamp_of(seed: int, threads: int) -> str:
    """Return a digest of what the result depends on: this file and its arguments."""
    return hashlib.sha256(Path(__file__).read_bytes() + f"seed={seed} threads={threads}".encode()).hexdigest()


def stamp_file(out: Path) -> Path:
    """Return the file that keeps `stamp_of`."""
    return out / "base.stamp"


def make(out: Path, seed: int, threads: int) -> None:
    """Write model and data into `out`. The stamp comes last, so that an interrupted run is repeated."""
    import torch
    from transformers import set_seed
    from transformers.utils import logging

    logging.disable_progress_bar()
    stamp_file(out).unlink(missing_ok=True)
    shutil.rmtree(out / "base", ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    train, held_out = split_pairs(seed)
    write_rows(out / "train.jsonl", train)
    write_rows(out / "held_out.jsonl", held_out)
    write_pairs(out / "pairs.jsonl", train)
    write_pairs(out / "held_out_pairs.jsonl", held_out)
    torch.set_num_threads(threads)
    set_seed(seed)
    model = make_model()
    pretrain(model, train, seed)
    model.save_pretrained(out / "base")
    make_tokenizer().save_pretrained(out / "base")
    stamp_file(out).write_text(stamp_of(seed, threads))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--seed", type=int, default=0, help="seed of the split, the corpus and the weights")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    arguments = parser.parse_args()
    stamp = stamp_file(arguments.out)
    if stamp.is_file() and stamp.read_text() == stamp_of(arguments.seed, arguments.threads):
        print(f"base model: {arguments.out} is up to date")
        return
    make(arguments.out, arguments.seed, arguments.threads)
    print(f"base model: written to {arguments.out}")


if __name__ == "__main__":
    main()
