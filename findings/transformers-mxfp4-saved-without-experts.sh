#!/usr/bin/env bash
# Transformers 5.12 saves a gpt-oss that it has read from MXFP4 without its experts, and says nothing.
#
# With Mxfp4Config(dequantize=True), as its own warning advises for training, a model has its experts in bf16.
# `save_pretrained` then reverses the conversion that it was loaded with, and MXFP4's has no reverse: the weights of all
# experts are left out. config.json says nothing of MXFP4. Whoever loads the folder gets random experts, with a warning.
# `save_pretrained(..., save_original_format=False)` writes them.
#
# Versions: transformers 5.12.1, torch 2.11.0, Python 3.12, on a CPU.
# Seen (tensors of the model that the folder lacks, of 4 with experts' weights):
#   save_pretrained(folder): 4
#   save_pretrained(folder, save_original_format=False): 0
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
uv venv -q --python "${PYTHON:-3.12}" .venv
uv pip install -q --python .venv/bin/python torch==2.11.0 transformers==5.12.1 accelerate numpy

cat > save.py <<'EOF'
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM, Mxfp4Config

work, options = Path(sys.argv[1]), json.loads(sys.argv[2])
torch.manual_seed(0)
config = GptOssConfig(
    vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=32, num_local_experts=4, num_experts_per_tok=2, dtype="bfloat16",
)
GptOssForCausalLM(config).bfloat16().save_pretrained(work / "packed")
file, said = work / "packed/model.safetensors", work / "packed/config.json"
tensors = load_file(file)
for name in [one for one in tensors if one.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
    experts, inputs, outputs = tensors.pop(name).shape
    tensors[f"{name}_blocks"] = torch.randint(256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
    tensors[f"{name}_scales"] = torch.randint(121, 125, (experts, outputs, inputs // 32), dtype=torch.uint8)
save_file(tensors, file, {"format": "pt"})
said.write_text(json.dumps(json.loads(said.read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}))
unpacked = Mxfp4Config(dequantize=True)
model = AutoModelForCausalLM.from_pretrained(work / "packed", quantization_config=unpacked, dtype=torch.bfloat16)
model.save_pretrained(work / "saved", **options)
saved = load_file(work / "saved/model.safetensors")
print("RESULT", sum(name not in saved for name, _ in model.named_parameters()))
EOF

lacks() { # FOLDER OPTIONS WANTED
  local found
  mkdir "$1"
  found=$(.venv/bin/python save.py "$work/$1" "$2" 2> "$1.log" | sed -n 's/^RESULT //p') || { tail -20 "$1.log"; exit 2; }
  echo "save_pretrained with $2: $found tensors are missing"
  [ "$found" = "$3" ] || { echo "changed: expected $3"; exit 1; }
}
lacks usual '{}' 4
lacks plain '{"save_original_format": false}' 0
