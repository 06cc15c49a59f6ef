#!/usr/bin/env bash
# Fails if clang-format would change a C++ file that git does not ignore.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t files < <(git ls-files --cached --others --exclude-standard -- '*.h' '*.cc' | sort -u | xargs -r ls 2>/dev/null)
if ! clang-format --dry-run -Werror "${files[@]}"; then
  echo "check_format: not formatted (see above). To repair: clang-format -i FILE..." >&2
  exit 1
fi
echo "check_format: ${#files[@]} files are formatted"
