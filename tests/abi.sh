#!/bin/sh
# abi.sh: compares the library's binary interface with that of the last tagged version, by abidiff (docs/abi.md).
# usage: sh tests/abi.sh SCRATCH-DIR
# Builds both in SCRATCH-DIR. Exit status 1 if something changed that the soname, being the same, does not allow.
# Without a tagged version (v0.1.0 and so on) before this one it says so, with status 0.
set -eu
scratch=$1
root=$(cd "$(dirname "$0")/.." && pwd)

if ! git -C "$root" rev-parse --verify --quiet HEAD >/dev/null; then
    echo "abi.sh: $root is no git repository: no tagged version to compare with" >&2
    exit 1
fi
# A tag on this very commit names this version, unless something was changed since.
from=HEAD
if git -C "$root" diff --quiet HEAD; then from=HEAD^; fi
if ! tag=$(git -C "$root" describe --tags --abbrev=0 --match 'v[0-9]*' $from 2>/dev/null); then
    echo "no version before this one is tagged: the binary interface is compared with none"
    exit 0
fi

rm -rf "$scratch/old" "$scratch/new"
mkdir -p "$scratch/old/source" "$scratch/new"
git -C "$root" archive "$tag" | tar -x -C "$scratch/old/source"

# build SOURCE DIR: the shared library with the debugging information that abidiff reads.
build() {
    if ! meson setup "$2/build" "$1" -Dbuildtype=debugoptimized -Ddefault_library=shared -Dtools=false -Dtests=false \
        -Dexamples=false >"$2/log" 2>&1 || ! ninja -C "$2/build" >>"$2/log" 2>&1; then
        cat "$2/log"
        return 1
    fi
}
soname() {
    objdump -p "$1" | sed -n 's/^ *SONAME *//p'
}
build "$scratch/old/source" "$scratch/old"
build "$root" "$scratch/new"
old=$scratch/old/build/src/libevoformer.so
new=$scratch/new/build/src/libevoformer.so

status=0
abidiff --no-added-syms --suppressions "$root/tests/abi.suppr" "$old" "$new" || status=$?
if [ $((status & 3)) -ne 0 ]; then
    echo "abi.sh: abidiff failed" >&2
    exit 1
fi
if [ "$(soname "$old")" != "$(soname "$new")" ]; then
    echo "$tag is $(soname "$old"), this is $(soname "$new"): another interface, which may differ as above"
elif [ "$status" -ne 0 ]; then
    echo "abi.sh: the above differs from $tag, but the soname $(soname "$new") is the same (docs/abi.md)" >&2
    exit 1
else
    echo "as in $tag: every program built for it runs with this $(soname "$new")"
fi
