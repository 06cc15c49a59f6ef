#!/usr/bin/env bash
# Builds the fuzz targets (clang, AddressSanitizer, UBSan) and runs them:
#
#   tools/fuzz.sh [--seconds N] [--jobs N] [target ...]
#
# Without targets it runs all of them. Each runs for 600 seconds, two at a time. Findings are in
# build/fuzz/findings/TARGET, useful new inputs in build/fuzz/corpus/TARGET. It fails on a finding.
# docs/testing/fuzzing.md says what each target checks.
set -euo pipefail
if [[ " $* " =~ " "(-h|--help)" " ]]; then
  sed -nE '2,/^set /s/^# ?//p' "$0"
  exit
fi
cd "$(dirname "$0")/.."

seconds=600
jobs=2
targets=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --seconds) seconds=$2 && shift 2 ;;
    --jobs) jobs=$2 && shift 2 ;;
    -*) echo "fuzz.sh: unknown option '$1' (--seconds N, --jobs N)" >&2 && exit 2 ;;
    *) targets+=("$1") && shift ;;
  esac
done
if [[ ${#targets[@]} -eq 0 ]]; then
  mapfile -t targets < <(basename -s _fuzz.cc tests/fuzz/*/*_fuzz.cc)
fi
for target in "${targets[@]}"; do
  compgen -G "tests/fuzz/*/${target}_fuzz.cc" >/dev/null || { echo "fuzz.sh: no target '$target'" >&2 && exit 2; }
done

tools/setup.sh sanitizers
cmake --preset fuzz >/dev/null
cmake --build build/fuzz --target "${targets[@]/%/_fuzz}" -- -j 2

# An input of a few kilobytes may not use much memory. The 64 MB are for protobuf: it takes up to 50
# MB at once for a length whose bytes have not arrived.
limits=(-max_len=4096 -timeout=10 -malloc_limit_mb=64 -rss_limit_mb=1024)
export ASAN_OPTIONS=detect_stack_use_after_return=1:quarantine_size_mb=16
export UBSAN_OPTIONS=print_stacktrace=1

run() {
  local target=$1 work=build/fuzz
  local log=$work/logs/$target.log found=$work/findings/$target
  mkdir -p "$work/logs" "$work/corpus/$target" "$found"
  "$work/tests/fuzz/${target}_fuzz" "$work/corpus/$target" "tests/fuzz/corpus/$target" \
    "${limits[@]}" -max_total_time="$seconds" -artifact_prefix="$found/" -print_final_stats=1 \
    -close_fd_mask=1 >"$log" 2>&1 || true
}
stat() { sed -nE "s/^stat::$2: +([0-9]+)$/\1/p" "build/fuzz/logs/$1.log"; }

for target in "${targets[@]}"; do
  rm -rf "build/fuzz/findings/$target" "build/fuzz/logs/$target.log"
  while [[ $(jobs -rp | wc -l) -ge $jobs ]]; do wait -n || true; done
  run "$target" &
done
wait

failed=0
printf '%-20s %12s %9s %9s %9s\n' target executions exec/s 'new units' findings
for target in "${targets[@]}"; do
  findings=$(find "build/fuzz/findings/$target" -type f | wc -l)
  executions=$(stat "$target" number_of_executed_units)
  # No statistics means that the fuzzer did not even finish.
  [[ $findings -eq 0 && -n $executions ]] || failed=1
  printf '%-20s %12s %9s %9s %9s\n' "$target" "${executions:-none}" \
    "$(stat "$target" average_exec_per_sec)" "$(stat "$target" new_units_added)" "$findings"
done
if [[ $failed -ne 0 ]]; then
  echo "fuzz: findings in build/fuzz/findings, their stacks in build/fuzz/logs"
fi
exit "$failed"
