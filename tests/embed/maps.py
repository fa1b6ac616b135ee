# maps.py: what contacts_mpi writes: the same file from one, two and three ranks, and for each alignment the best pairs
# that the example coevolution, one process, finds. The alignments are parts of the one in examples/data.
import os
import sys

from prefix import run

PARTS = [(0, 120, 300), (0, 60, 400), (60, 159, 200), (20, 100, 500), (0, 40, 7)]  # first column, end, sequences


def write_alignments(source, folder):
    with open(f"{source}/examples/data/PF00071.aln", encoding="ascii") as file:
        lines = file.read().split()
    names = []
    for number, (first, end, count) in enumerate(PARTS):
        names.append(f"part{number}.aln")
        with open(f"{folder}/{names[-1]}", "w", encoding="ascii") as file:
            file.writelines(line[first:end] + "\n" for line in lines[:count])
    return names


def best_pairs(rows):
    """As coevolution lists them: the best 50 with at least 5 columns between, best first."""
    far = [row for row in rows if row[1] - row[0] >= 5]
    return sorted(far, key=lambda row: -row[2])[:50]


def read_rows(path, with_name):
    found = {}
    with open(path, encoding="ascii") as file:
        next(file)
        for line in file:
            *name, i, j, score = line.split("\t")
            found.setdefault(name[0] if with_name else "", []).append((int(i), int(j), float(score)))
    return found


def check(work, source, build, env):
    names = write_alignments(source, work)
    texts = []
    for ranks in (1, 2, 3):
        run(["mpirun", "-n", str(ranks), f"{work}/contacts_mpi", f"maps{ranks}.tsv", *names], "contacts_mpi",
            cwd=work, env=env)
        with open(f"{work}/maps{ranks}.tsv", encoding="ascii") as file:
            texts.append(file.read())
    if len(set(texts)) != 1:
        sys.exit("the file depends on the number of ranks")
    maps = read_rows(f"{work}/maps2.tsv", True)
    if list(maps) != names:
        sys.exit(f"maps of {list(maps)}, expected {names}")
    for name, (first, end, _) in zip(names, PARTS):
        if len(maps[name]) != (end - first) * (end - first - 1) // 2:
            sys.exit(f"{name}: {len(maps[name])} pairs of {end - first} columns")
    compared = 0
    coevolution = f"{build}/examples/coevolution"
    for name in names if os.path.exists(coevolution) else []:
        run([coevolution, name], "coevolution", cwd=work, env=env)
        alone = read_rows(f"{work}/contacts.tsv", False)[""]
        together = best_pairs(maps[name])
        if len(alone) != len(together):
            sys.exit(f"{name}: {len(together)} best pairs, coevolution has {len(alone)}")
        for a, b in zip(alone, together):
            if abs(a[2] - b[2]) > 1e-4 * abs(a[2]) + 1e-6:
                sys.exit(f"{name}: best pair {b}, coevolution has {a}")
        compared += 1
    print(f"{len(names)} maps, the same from 1, 2 and 3 ranks; {compared} compared with coevolution")
    if compared == 0:
        sys.exit("nothing was compared: the examples are not built")
