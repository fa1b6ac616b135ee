#!/bin/sh
# warnings.sh: the code that users copy compiles without a warning, and so does what they compile of ours.
# usage: warnings.sh c|c++|fortran|mpi SOURCE-DIR
# Exit status 77, skipped, without a compiler for it.
set -eu
cd "$2"
case $1 in
c) compiler=cc flags='-std=c11 -Wall -Wextra -Wpedantic -Wconversion -Wshadow' files=examples/embed/c/ops.c ;;
c++) compiler=c++ flags='-std=c++17 -Wall -Wextra -Wpedantic -Wconversion -Wshadow' files=examples/embed/c++/ops.cpp ;;
fortran) compiler=gfortran flags='-std=f2018 -Wall -Wextra' files='bindings/fortran/evoformer.f90 examples/embed/fortran/ops.f90' ;;
mpi) compiler=mpicc flags='-std=c11 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Wconversion -Wshadow' files=examples/contacts_mpi.c ;;
*) echo "warnings.sh: unknown language $1" >&2; exit 2 ;;
esac
if ! command -v $compiler >/dev/null; then
    echo "skipped: no $compiler"
    exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [ "$1" = fortran ]; then flags="$flags -J$scratch"; fi
for file in $files; do
    # shellcheck disable=SC2086
    $compiler $flags -Werror -O2 -Iinclude -c "$file" -o "$scratch/object.o"
done
