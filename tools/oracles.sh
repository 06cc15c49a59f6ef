#!/usr/bin/env bash
# Makes .deps/oracles, a Python environment with the whole torch 2.11 wheel (4.7 GB). Tests that
# compare with Python's torch or run under torchrun need it. They are skipped where it does not
# exist.
set -euo pipefail
if [[ " $* " =~ " "(-h|--help)" " ]]; then
  sed -nE '2,/^set /s/^# ?//p' "$0"
  exit
fi
cd "$(dirname "$0")/.."

folder=.deps/oracles
wheels=(torch==2.11.0 numpy)
[[ $(cat "$folder/.installed" 2>/dev/null) == "${wheels[*]}" ]] && exit 0

echo "oracles: installing ${wheels[*]} into $folder"
rm -rf "$folder"
if ! python3 -m venv "$folder"; then
  echo "oracles: python3 has no working venv (Debian package python3-venv)" >&2
  exit 1
fi
for try in 1 2 3; do
  "$folder/bin/pip" install --quiet --disable-pip-version-check --retries 10 --timeout 60 "${wheels[@]}" && break
  echo "oracles: try $try of 3 failed" >&2
  [[ $try -lt 3 ]] || exit 1
done
"$folder/bin/python" -c 'import torch; print("oracles: torch", torch.__version__)'
echo "${wheels[*]}" >"$folder/.installed"
