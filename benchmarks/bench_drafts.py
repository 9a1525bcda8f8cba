"""Counts how many tokens of a rollout could have been guessed from text that is there, as speculative decoding would.

python benchmarks/bench_drafts.py                          six prompts, eight answers each: seven minutes on one core
python benchmarks/bench_drafts.py --answers 2 --tokens 16 --raw /tmp/drafts.json      a trial

A draft is what followed the last 4, 3 or 2 tokens where they stood before: in the prompt and the answer itself (own),
in the other answers to the prompt (siblings), or in either. An answer is decoded beside its siblings, so it sees as
much of them as it has itself, and all of those that have ended. The engine samples by seed and position, so a guess
holds if it is the token that would have been drawn anyway. SmolLM2-135M-Instruct answers at temperature 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from toy import write_figures

ROOT = Path(__file__).resolve().parents[1]
RAW = ROOT / "benchmarks/results/drafts.json"
BASE = Path("~/.cache/lorarl/smollm2/fp32").expanduser()
PROMPTS = (
    "A farmer has 17 sheep and buys 8 more. He sells 5. How many sheep has he? Think step by step.",
    "Write a Python function that returns the n-th Fibonacci number, and explain it.",
    "A shop sold 48 clips in April, and half as many in May. How many did it sell altogether? Show your steps.",
    "Explain how photosynthesis works in detail.",
    "List ten uses of a paper clip with a short explanation of each.",
    "Solve for x: 3x + 7 = 25. Show each step.",
)
KNOWN = (4, 3, 2)
"""How many tokens must have stood before, the most first."""
DRAFTS = (2, 4)

type Tokens = Sequence[int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=BASE, help="a folder; `make demo` makes the default")
    parser.add_argument("--answers", type=int, default=8, help="to each prompt")
    parser.add_argument("--tokens", type=int, default=384, help="of the longest answer")
    parser.add_argument("--raw", type=Path, default=RAW)
    chosen = parser.parse_args()
    groups = list(generate(chosen.model, chosen.answers, chosen.tokens))
    found = []
    for source in ("own", "siblings", "either"):
        for draft in DRAFTS:
            pairs = [rates(prompt, answers, source, draft) for prompt, answers in groups]
            every, longest = ([sum(part) for part in zip(*pair, strict=True)] for pair in zip(*pairs, strict=True))
            found.append({"from": source, "draft": draft, "all": ratio(every), "longest": ratio(longest)})
            print(f"{source}, {draft} tokens: {ratio(every):.3f} a step, {ratio(longest):.3f} in the longest answers")
    lengths = [[len(answer) for answer in answers] for _, answers in groups]
    write_figures(chosen.raw, {"tokens": chosen.tokens, "lengths": lengths, "tokens_per_step": found})


def generate(model: Path, answers: int, tokens: int) -> Iterator[tuple[list[int], list[list[int]]]]:
    """Yield each prompt and its answers, with their end tokens."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    torch.manual_seed(0)
    for text in PROMPTS:
        prompt = list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
            )
        )
        made = network.generate(
            torch.tensor([prompt] * answers),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=tokens,
            pad_token_id=tokenizer.eos_token_id,
        )
        yield prompt, [until(row[len(prompt) :], tokenizer.eos_token_id) for row in made.tolist()]


def until(row: list[int], end: int) -> list[int]:
    """Return a row up to its end token."""
    return row[: row.index(end) + 1] if end in row else row


def rates(
    prompt: Tokens, answers: Sequence[Tokens], source: str, draft: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (tokens, steps) of all answers to a prompt, and those of the longest."""
    by_length = sorted(answers, key=len)
    counts = []
    for place, answer in enumerate(by_length):
        siblings = [other for other in by_length if other is not answer]
        counts.append((len(answer), steps(prompt, answer, siblings, place, source, draft)))
    tokens, made = (sum(part) for part in zip(*counts, strict=True))
    return (tokens, made), counts[-1]


def steps(prompt: Tokens, answer: Tokens, siblings: Sequence[Tokens], ended: int, source: str, draft: int) -> int:
    """Return the decode steps of an answer, of whose siblings the first `ended` have ended before it."""
    done = count = 0
    while done < len(answer):
        own = [*prompt, *answer[:done]]
        there: list[Tokens] = [own] if source != "siblings" else []
        if source != "own":
            there += [other if place < ended else other[:done] for place, other in enumerate(siblings)]
        guessed, right = guess(own, there, draft), 0
        while right < len(guessed) and answer[done + right : done + right + 1] == guessed[right : right + 1]:
            right += 1
        done += right + 1
        count += 1
    return count


def guess(own: list[int], texts: Sequence[Tokens], draft: int) -> list[int]:
    """Return what followed the last tokens where they stood last, in the first of the texts that has them."""
    for known in KNOWN:
        last = own[-known:]
        for text in texts:
            for start in range(len(text) - known - 1, -1, -1):
                if list(text[start : start + known]) == last:
                    return list(text[start + known : start + known + draft])
    return []


def ratio(pair: Sequence[int]) -> float:
    """Return tokens over steps."""
    return pair[0] / pair[1]


if __name__ == "__main__":
    main()
