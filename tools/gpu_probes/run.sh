#!/usr/bin/env bash
# Builds the GPU probes and runs each for at most 60 s. Needs a GPU, nvcc, and python3 with torch.
# Prints `probe NAME: VALUE UNIT`, and writes these lines to $OUT/probes.txt. `run.sh NAME...` runs only those.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-$(mktemp -d)}
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
: >"$out/probes.txt"
export PYTHONUNBUFFERED=1

say() { echo "probe machine: $*" | tee -a "$out/probes.txt"; }
say "$(nvidia-smi --query-gpu=name,driver_version,memory.total,persistence_mode,compute_mode --format=csv,noheader)"
say "$(uname -sr), $(nproc) processors, $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2-)"
say "$(nvcc --version | grep -o 'release.*'); $(date -u +%F)"

for source in "$here"/*.cu; do
  name=$(basename "$source" .cu)
  nvcc -O2 -std=c++17 -arch="${ARCH:-native}" "$source" -o "$build/$name" -lcuda >"$build/$name.log" 2>&1 ||
    { say "$name was not built"; head -20 "$build/$name.log"; } &
done
wait

probe() {
  local name=$1
  shift
  if [ "${#only[@]}" -gt 0 ] && [[ " ${only[*]} " != *" $name "* ]]; then return; fi
  local begin=$SECONDS
  timeout -k 5 60 "$@" 2>&1 | tee -a "$out/log.txt" | grep --line-buffered '^probe ' | tee -a "$out/probes.txt"
  say "$name ended with ${PIPESTATUS[0]} after $((SECONDS - begin)) s"
}

only=("$@")
probe context "$build/context"
probe share "$build/share"
probe completion "$build/completion"
probe roundtrip "$build/roundtrip"
probe copyrate "$build/copyrate"
probe hostreg "$build/hostreg"
probe kill_vmm "$build/kill" vmm
probe kill_ipc "$build/kill" ipc
probe give_back "$build/give_back"
probe beside "$build/beside"
probe engines "$build/engines"
probe torch_context python3 "$here/torch_context.py"
probe nccl_same python3 "$here/nccl_one_gpu.py" same
probe nccl_different python3 "$here/nccl_one_gpu.py" different
probe torch_rpc_default python3 "$here/torch_rpc.py" default
probe torch_rpc_ipc python3 "$here/torch_rpc.py" cuda_ipc
probe torch_rpc_basic python3 "$here/torch_rpc.py" cuda_basic
if [ "${#only[@]}" -eq 0 ]; then OUT=$out timeout -k 5 120 bash "$here/run_torch.sh"; fi
