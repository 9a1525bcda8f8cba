"""Held-out greedy accuracy of an adapter in plain vLLM, as anyone would serve it. Run with: BASE ADAPTER HELD_OUT.

It prints JSON on the last line. What counts as right is what examples/addition/evaluate.py says.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from addition.evaluate import MAX_NEW_TOKENS, completion_of, share_correct


def main(base: str, adapter: str, held_out: str) -> None:
    """The command."""
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    rows = [json.loads(line) for line in Path(held_out).read_text().splitlines()]
    config = json.loads(Path(adapter, "adapter_config.json").read_text())
    engine = LLM(
        base,
        enable_lora=True,
        max_lora_rank=max(8, config["r"]),
        # By default vLLM also tries an adapter on the head, which fails if the vocabulary is smaller than the model
        # is wide.
        lora_target_modules=sorted({name.rpartition(".")[2] for name in config["target_modules"]}),
        max_model_len=64,
        kv_cache_memory_bytes=1 << 30,
        enforce_eager=True,
    )
    tokenizer = engine.get_tokenizer()
    greedy = SamplingParams(temperature=0, max_tokens=MAX_NEW_TOKENS)
    answered = engine.generate(
        [row["prompt"] for row in rows], greedy, lora_request=LoRARequest("adapter", 1, adapter), use_tqdm=False
    )
    tokens = [completion_of(one.outputs[0].token_ids, tokenizer.eos_token_id) for one in answered]
    completions = [None if each is None else tokenizer.decode(each) for each in tokens]
    print(json.dumps({"accuracy_vllm": share_correct(completions, [row["answer"] for row in rows])}))


if __name__ == "__main__":
    main(*sys.argv[1:])
