# exported.py: compares the names that the library exports with the list src/exported.txt.
# usage: exported.py shared LIBRARY LIST [VERSION]
#        exported.py static LIBRARY LIST
# shared: exactly the names of the list, each with this version if one is given. static: all of them, and no name without
# evo_ in front.
import re
import subprocess
import sys


def defined_names(library, flags):
    """The names, each with its version or ''."""
    text = subprocess.run(["nm", "-P", "--defined-only", *flags, library], check=True,
                          stdout=subprocess.PIPE, universal_newlines=True).stdout
    rows = (line.split() for line in text.splitlines())
    return {row[0].partition("@")[0]: row[0].partition("@")[2].lstrip("@")
            for row in rows if len(row) > 1 and row[1] != "A"}


def main():
    if len(sys.argv) not in (4, 5) or sys.argv[1] not in ("shared", "static"):
        sys.exit("usage: exported.py shared|static LIBRARY LIST [VERSION]")
    kind, library, list_file = sys.argv[1:4]
    version = sys.argv[4] if len(sys.argv) > 4 else ""
    with open(list_file, encoding="utf-8") as f:
        lines = [line.strip() for line in f]
    names = [line for line in lines if line and not line.startswith("#")]
    wrong = []
    if names != sorted(set(names)):
        wrong.append(list_file + ": not sorted, or a name is there twice")

    found = defined_names(library, ["-D"] if kind == "shared" else ["-g"])
    # What a sanitizer defines in a library is not ours.
    found = {name: at for name, at in found.items() if not re.match(r"__\w*(asan|tsan|ubsan|sancov)", name)}
    for name in sorted(set(names) - set(found)):
        wrong.append(name + ": in the list, not in the library")
    for name in sorted(set(names) & set(found)):
        if found[name] != version:
            wrong.append(f"{name}: has version '{found[name]}', expected '{version}'")
    for name in sorted(set(found) - set(names)):
        if kind == "shared":
            wrong.append(name + ": exported, not in the list")
        elif not name.startswith("evo_"):
            wrong.append(name + ": a global name without evo_ in front; programs may have it too")
    for line in wrong:
        print(line)
    if not names:
        print(list_file + ": empty")
    print(f"{len(found)} names in {library}, {len(wrong)} wrong")
    sys.exit(1 if wrong or not names else 0)


main()
