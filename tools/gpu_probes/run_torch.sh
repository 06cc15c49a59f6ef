#!/usr/bin/env bash
# Builds and runs the two probes that use LibTorch's C++ libraries. It takes LibTorch from python3's torch.
# Prints `probe NAME: VALUE UNIT`, and writes these lines to $OUT/probes_torch.txt.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-$(mktemp -d)}
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
torch=$(python3 -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')
nvidia=$(dirname "$torch")/nvidia/cu13/lib
cuda=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
for folder in "$cuda/lib64" "$cuda/targets/x86_64-linux/lib" "$nvidia"; do
  runtime=$(ls "$folder"/libcudart.so* 2>/dev/null | head -1)
  [[ -n $runtime ]] && break
done
stubs=$(ls -d "$cuda"/lib64/stubs "$cuda"/targets/x86_64-linux/lib/stubs "$cuda"/lib/stubs 2>/dev/null | head -1)
driver=$(ldconfig -p | grep -m1 -o '/.*libcuda.so.1$' ||
  ls /usr/local/nvidia/lib64/libcuda.so.1 "$stubs/libcuda.so" 2>/dev/null | head -1)
export PYTHONUNBUFFERED=1 LD_LIBRARY_PATH="$torch/lib:$nvidia:$(dirname "$driver"):${LD_LIBRARY_PATH:-}"

: >"$out/probes_torch.txt"
g++ -O1 -std=c++17 "$here/c10_load.cc" -o "$build/c10_load" -ldl &
g++ -O1 -std=c++20 -w -I"$here" -I"$cuda/include" -isystem "$torch/include" \
  -isystem "$torch/include/torch/csrc/api/include" "$here/torch_wrap.cc" -o "$build/torch_wrap" \
  -L"$torch/lib" -Wl,--no-as-needed -ltorch -ltorch_cpu -ltorch_cuda -lc10 -lc10_cuda \
  "$runtime" "$driver" -Wl,--allow-shlib-undefined -pthread >"$build/log" 2>&1 ||
  head -30 "$build/log" | tee -a "$out/probes_torch.txt"
wait
timeout -k 5 30 "$build/c10_load" "$torch/lib" 2>&1 | tee -a "$out/probes_torch.txt"
CUDA_VISIBLE_DEVICES="" timeout -k 5 30 "$build/c10_load" "$torch/lib" 2>&1 |
  sed 's/^probe c10_load/& with no visible device,/' | tee -a "$out/probes_torch.txt"
timeout -k 5 60 "$build/torch_wrap" 2>&1 | tee -a "$out/probes_torch.txt"
