#!/bin/sh
# layouts.sh: the C compiler agrees with the sizes, offsets and values that the Fortran module's generator found.
# usage: layouts.sh SOURCE-DIR PYTHON COMPILER…
set -eu
source=$1
python=$2
shift 2
text=$("$python" "$source/bindings/fortran/generate.py" "$source/include" --c)
printf '%s\n' "$text" | "$@" -x c -std=c11 -I"$source/include" -fsyntax-only -
echo "$(printf '%s\n' "$text" | grep -c _Static_assert) sizes, offsets and values"
