#!/bin/sh
# quickstart.sh: installs what is missing, builds the library, computes a contact map, says where it is.
set -eu

usage() {
    cat <<'USAGE'
usage: sh tools/quickstart.sh

Installs the packages that are missing (tools/install-deps.sh), builds
libevoformer in build/, and runs the example `coevolution` over the protein
family in examples/data/PF00071.aln. The picture, contacts.png, and the list of
the best pairs, contacts.tsv, are written into the current folder.

  --help   this text
USAGE
}

case ${1-} in
'') ;;
-h | --help) usage; exit 0 ;;
*) echo "quickstart.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
esac

root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build
say() { printf '%s\n' "== $*"; }

sh "$root/tools/install-deps.sh"

say "building in $build"
if [ ! -f "$build/build.ninja" ]; then
    log=$(mktemp)
    if ! meson setup "$build" "$root" >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        exit 1
    fi
    rm -f "$log"
fi
ninja -C "$build" --quiet
if [ ! -x "$build/examples/coevolution" ]; then
    echo "quickstart.sh: build/ was configured without the examples; run:" >&2
    echo "  meson configure $build -Dexamples=true" >&2
    exit 1
fi

say "computing the contact map of the Ras family (PF00071)"
rm -f contacts.png contacts.tsv
"$build/examples/coevolution"
if [ ! -f contacts.png ]; then
    echo "quickstart.sh: coevolution wrote no contacts.png" >&2
    exit 1
fi

say "the best pairs: $(pwd)/contacts.tsv"
say "the picture:    $(pwd)/contacts.png"
