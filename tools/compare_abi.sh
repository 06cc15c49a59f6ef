#!/usr/bin/env bash
# Says whether programs that were linked with libweft.so of another revision run with that of this tree.
#
#   tools/compare_abi.sh [REVISION]     REVISION: a tag or commit; default: the newest tag
#
# Builds both libraries (preset abi) and compares, with abidiff, the functions of Weft that are no internals, and the
# types in the installed headers. Needs tools/setup.sh; installs abigail-tools. 7 minutes on two cores without ccache.
#
# Exit code 0: they do, or the version X.Y differs, by which the libraries' names differ too. 1: they do not. The report
# is printed, and stays in build/abi/report.txt.
set -euo pipefail
if [[ " $* " =~ " "(-h|--help)" " ]]; then
  sed -nE '2,/^set /s/^# ?//p' "$0"
  exit
fi
cd "$(dirname "$0")/.."
revision=${1:-$(git describe --tags --abbrev=0 2> /dev/null || true)}
if [[ -z $revision ]]; then
  echo "compare_abi.sh: this clone has no tag. Name a revision." >&2
  exit 2
fi
if ! commit=$(git rev-parse --verify --quiet "$revision^{commit}"); then
  echo "compare_abi.sh: '$revision' is no revision" >&2
  exit 2
fi
if ! command -v abidiff > /dev/null; then apt-get install -y --no-install-recommends abigail-tools; fi

source=$PWD/build/abi/other
trap 'git worktree remove --force "$source" 2> /dev/null || true' EXIT
git worktree remove --force "$source" 2> /dev/null || true
git worktree add --force --detach "$source" "$commit" > /dev/null
if ! grep -q '"name": "abi"' "$source/CMakePresets.json"; then
  echo "compare_abi.sh: $revision is older than libweft.so" >&2
  exit 2
fi
# The same LibTorch and Gloo for both.
libraries=("-DWEFT_TORCH_DIR=$PWD/.deps/site/torch" "-DWEFT_GLOO_DIR=$PWD/.deps/gloo/usr/include")

# build SOURCE NAME: makes build/abi/NAME, and installs headers and library in build/abi/NAME/prefix.
build() {
  (cd "$1" && cmake --preset abi -B "$OLDPWD/build/abi/$2" "${libraries[@]}") > /dev/null
  cmake --build "build/abi/$2" --target all
  rm -rf "build/abi/$2/prefix"
  cmake --install "build/abi/$2" --component dev --prefix "build/abi/$2/prefix" > /dev/null
}
build "$source" old
build "$PWD" new

cat > build/abi/internals <<'END'
[suppress_function]
  name_not_regexp = ^weft::
  drop = yes

[suppress_function]
  name_regexp = ^weft::([a-z0-9_]*internal|wire)::
  drop = yes

[suppress_variable]
  name_not_regexp = ^weft::
  drop = yes
END
code=0
abidiff --suppressions build/abi/internals --no-added-syms \
  --headers-dir1 build/abi/old/prefix/include --headers-dir2 build/abi/new/prefix/include \
  build/abi/old/prefix/lib/libweft.so build/abi/new/prefix/lib/libweft.so > build/abi/report.txt || code=$?
cat build/abi/report.txt
if ((code & 3)); then exit 2; fi # abidiff itself has failed
series() { sed -nE 's/^project\(weft VERSION ([0-9]+\.[0-9]+)\..*/\1/p' "$1/CMakeLists.txt"; }
if ((code == 0)); then
  echo "compare_abi.sh: programs linked with $revision run with this tree"
elif [[ $(series "$source") != "$(series "$PWD")" ]]; then
  echo "compare_abi.sh: changed since $revision, and so has the library's name: $(series "$source") to $(series "$PWD")"
else
  echo "compare_abi.sh: changed since $revision, but the version is still $(series "$PWD")" >&2
  exit 1
fi
