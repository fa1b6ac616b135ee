#!/bin/sh
# headers.sh: compiles each public header alone, twice in one file, as C99, C++11 or C++17 (the .hpp alone).
# usage: EVO_HEADERS='evoformer/a.h …' headers.sh c99|c++11|c++17 INCLUDE-DIR COMPILER…
set -u
std=$1
dir=$2
shift 2
case $std in
c99) flags='-x c -Wstrict-prototypes' ending=h ;;
c++11) flags='-x c++' ending=h ;;
c++17) flags='-x c++ -Wconversion -Wshadow' ending=hpp ;;
*) echo "headers.sh: unknown language $std" >&2; exit 2 ;;
esac

failed=0
count=0
for path in "$dir"/evoformer/*."$ending"; do
    name=evoformer/${path##*/}
    count=$((count + 1))
    case " $EVO_HEADERS " in
    *" $name "*) ;;
    *) echo "$name: not in include/meson.build, so it would not be installed"; failed=1 ;;
    esac
    # A header of macros alone would be an empty translation unit.
    printf '#include <%s>\n#include <%s>\ntypedef int header_alone;\n' "$name" "$name" |
        "$@" $flags -std="$std" -pedantic-errors -Wall -Wextra -Werror -I"$dir" -fsyntax-only - ||
        { echo "$name: does not compile alone as $std"; failed=1; }
done
echo "$count headers as $std"
[ "$failed" -eq 0 ] && [ "$count" -gt 0 ]
