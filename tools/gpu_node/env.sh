# Source this on the machine that the node travelled to, when all parts are there. It unpacks the node once, and sets
# what its tool needs.
#   . tools/gpu_node/env.sh && python3 -m gpu_node up
_there=/opt/lorarl-node
if [ ! -d $_there ]; then
  _parts=("$_there".parts/part.*)
  if [ "${#_parts[@]}" != "${_parts[0]##*-of-}" ]; then
    echo "gpu-node: not all parts are in $_there.parts. Run put.sh of each part." >&2
    return 1
  fi
  rm -rf $_there.unfinished && mkdir $_there.unfinished &&
    cat "${_parts[@]}" | xz -dc -T0 | tar -x -C $_there.unfinished && mv $_there.unfinished $_there ||
    { echo "gpu-node: $_there.parts could not be unpacked" >&2; return 1; }
fi
export PATH="$_there/bin:$PATH" LORARL_CACHE=$_there
# The trainer's packages as pods find them. Ours and the tests' come first.
export LORARL_GPU_PYTHONPATH="${LORARL_GPU_PYTHONPATH-${PYTHONPATH:-}}"
_checkout="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
export PYTHONPATH="$_checkout/crds:$_checkout/trainer_image:$_checkout/operator:$_checkout/tools:$_checkout/tests"
PYTHONPATH="$PYTHONPATH${LORARL_GPU_PYTHONPATH:+:$LORARL_GPU_PYTHONPATH}"
[ ! -d /usr/local/cuda ] || export CUDA_HOME="${CUDA_HOME:-/usr/local/cuda}"
# No images are built or pulled there: the node brought them.
export LORARL_CLUSTER_BUILDS=0 LORARL_CLUSTER_OUTBOUND=none LORARL_CLUSTER_INSTALL=0
export LORARL_CLUSTER_FREE_GB="${LORARL_CLUSTER_FREE_GB:-5}"
if [ -z "${LORARL_CLUSTER_DRIVER:-}" ] && [ -e /dev/nvidiactl ]; then
  for _folder in /usr/local/nvidia/lib64 /usr/lib/x86_64-linux-gnu /usr/lib64; do
    [ ! -e $_folder/libnvidia-ml.so.1 ] || { export LORARL_CLUSTER_DRIVER=$_folder; break; }
  done
fi
