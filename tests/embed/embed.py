# embed.py: follows one way of docs/embedding.md from an installation that was moved, as a newcomer would: writes the
# files of the page into an empty folder, runs its commands, and compares what the program computes with golden cases.
# usage: embed.py BUILD-DIR SOURCE-DIR LANGUAGE WAY     the two headings in docs/embedding.md
# LANGUAGE Install runs the page's own installation instead, from a copy of the sources, and then C, pkg-config.
# Exit status 77, skipped, if a program that the commands need is not installed.
import glob
import os
import shutil
import sys
import tempfile

import golden
import maps
import page
from prefix import environment, install, run

NEEDS = {"CMake": ["cmake"], "Fortran": ["gfortran"], "OpenMPI": ["mpicc", "mpirun"], "C++": ["c++"]}


def check_program(work, source, env):
    programs = [path for path in glob.glob(f"{work}/**/ops", recursive=True)
                if os.path.isfile(path) and os.access(path, os.X_OK) and "/subprojects/" not in path]  # those of the sources
    if len(programs) != 1:
        sys.exit(f"the commands leave {len(programs)} programs called ops")
    for pair in golden.PAIRS:
        cases = golden.write(f"{source}/tests/golden", pair, f"{work}/case")
        run([programs[0], f"{work}/case", f"{work}/result"], "ops", env=env)
        wrong = golden.compare(cases, f"{work}/result")
        if wrong:
            sys.exit(f"{pair}: {wrong}")
    print(f"{2 * len(golden.PAIRS)} golden cases agree")


def follow_install(source, folder, env):
    """Runs the section Install in a copy of the sources, and builds the C program in the same shell."""
    copy, work = f"{folder}/libevoformer", f"{folder}/project"
    shutil.copytree(source, copy, ignore=lambda path, names: [
        name for name in names if name.startswith((".", "build")) or name in ("golden", "results")])
    os.mkdir(work)
    files, build = page.way(f"{source}/docs/embedding.md", "C", "pkg-config")
    write(files, work)
    _, commands = page.way(f"{source}/docs/embedding.md", "Install", "")
    run(["sh", "-eu", "-c", f"{commands}\ncd {work}\n{build}"], "Install", cwd=copy, env=env)
    return work, {**env, "LD_LIBRARY_PATH": f"{folder}/evoformer/lib"}


def write(files, folder):
    for path, text in files.items():
        with open(f"{folder}/{os.path.basename(path)}", "w", encoding="utf-8") as file:
            file.write(text)


def main():
    if len(sys.argv) != 5:
        sys.exit("usage: embed.py BUILD-DIR SOURCE-DIR LANGUAGE WAY")
    build, source, language, way = sys.argv[1:]
    missing = [name for key in (language, way.split(" ")[0]) for name in NEEDS.get(key, []) if shutil.which(name) is None]
    if missing:
        print("skipped: no " + ", ".join(missing))
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        env = environment(source, folder)
        if language == "Install":
            work, env = follow_install(source, folder, env)
            check_program(work, source, env)
            return
        prefix, libdir = install(build, folder)
        env.update({"PKG_CONFIG_PATH": f"{prefix}/{libdir}/pkgconfig", "CMAKE_PREFIX_PATH": prefix,
                    "LD_LIBRARY_PATH": f"{prefix}/{libdir}"})
        work = f"{folder}/project"
        os.mkdir(work)
        files, commands = page.way(f"{source}/docs/embedding.md", language, way)
        write(files, work)
        run(["sh", "-eu", "-c", commands], f"{language}, {way}", cwd=work, env=env)
        if language == "MPI":
            maps.check(work, source, build, env)
        else:
            check_program(work, source, env)


main()
