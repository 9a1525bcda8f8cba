#!/usr/bin/env bash
# PEFT 0.21 rounds the start values of an adapter to 8 bits where the linear layer's weight is torch.float8_e4m3fn.
#
# The adapter is moved to the device and the dtype of the base layer's weight after its start values are drawn. With
# `autocast_adapter_dtype=True`, the default, it is float32 again afterwards, so its dtype shows nothing. An attribute
# `compute_dtype` on the layer, as quantized layers of other packages have it, avoids it.
#
# Versions: peft 0.21.2, torch 2.11.0, Python 3.12, on a CPU.
# Seen (different values among the 256 of lora_A, and its dtype):
#   bf16 weight:   226, float32
#   float8 weight: 62, float32, and each is a number that float8 has
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
uv venv -q --python "${PYTHON:-3.12}" .venv
uv pip install -q --python .venv/bin/python torch==2.11.0 transformers==5.12.1 peft==0.21.2 numpy

cat > start.py <<'EOF'
import torch
from peft import LoraConfig, get_peft_model

FLOAT8 = torch.float8_e4m3fn


def start_values(dtype):
    torch.manual_seed(0)
    model = torch.nn.Sequential()
    model.q = torch.nn.Linear(64, 64, bias=False)
    model.q.weight = torch.nn.Parameter(model.q.weight.detach().to(dtype), requires_grad=False)
    return get_peft_model(model, LoraConfig(r=4, target_modules=["q"])).base_model.model.q.lora_A["default"].weight


for name, dtype in (("bf16", torch.bfloat16), ("float8", FLOAT8)):
    values = start_values(dtype).detach()
    rounded = values.to(FLOAT8).float()
    print(f"{name}: {values.dtype}, {len(values.unique())} different of {values.numel()}, float8 has all: {bool((values == rounded).all())}")
EOF
found=$(.venv/bin/python start.py)
echo "$found"
grep -Eq "^bf16: torch.float32, (2[0-9][0-9]) different of 256, float8 has all: False$" <<< "$found" || exit 1
grep -Eq "^float8: torch.float32, [0-9]{1,2} different of 256, float8 has all: True$" <<< "$found" || exit 1
echo "as recorded"
