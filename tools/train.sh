#!/usr/bin/env bash
# Trains the main example from a bare clone: one parameter server and N trainers on Fashion-MNIST.
#
#   tools/train.sh [--trainers N] [options of examples/parameter_server ...]
#
# N is 1 to 1023, by default 2. examples/parameter_server/README.md describes the job. After the
# build, build/release/examples/parameter_server/parameter_server --help lists its options.
set -euo pipefail
if [[ " $* " =~ " "(-h|--help)" " ]]; then
  sed -nE '2,/^set /s/^# ?//p' "$0"
  exit
fi
cd "$(dirname "$0")/.."

trainers=2
arguments=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --trainers) trainers=${2:?train.sh: --trainers needs a number} && shift 2 ;;
    --trainers=*) trainers=${1#*=} && shift ;;
    *) arguments+=("$1") && shift ;;
  esac
done
if ! [[ $trainers =~ ^[1-9][0-9]{0,3}$ ]] || ((trainers > 1023)); then
  echo "train.sh: --trainers takes a number from 1 to 1023, not '$trainers'" >&2
  exit 2
fi
job=build/release/examples/parameter_server/parameter_server
[[ -x $job ]] || echo "train.sh: building, some minutes the first time"

tools/setup.sh
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { cmake --preset release && cmake --build --preset release --target weft_launch parameter_server -- -j "$(nproc)"; } >"$log" 2>&1; then
  cat "$log" >&2
  echo "train.sh: the build failed, see above" >&2
  exit 1
fi

rm -f "$log"
# Without prefixes the last line is that of the job itself. If one trainer dies, the others go on.
exec build/release/worker/weft_launch --nproc-per-node $((1 + trainers)) --no-prefix \
  --on-failure continue -- "$job" "${arguments[@]}"
