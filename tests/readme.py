# readme.py: builds and runs the first ```c block of README.md, as a reader would.
# usage: readme.py README INCLUDE-DIR LIBRARY COMPILER FLAG...
# Exit status 77, skipped, if there is no README or no such block.
import os
import subprocess
import sys
import tempfile


def first_c_block(path):
    lines = None
    with open(path, encoding="utf-8") as file:
        for line in file:
            if lines is None and line.strip() == "```c":
                lines = []
            elif lines is not None and line.strip() == "```":
                return "".join(lines)
            elif lines is not None:
                lines.append(line)
    return None


def run(command, what, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, **more)
    if done.returncode != 0:
        sys.exit(f"{what} gives status {done.returncode}:\n{done.stdout}")
    return done.stdout


def main():
    if len(sys.argv) < 5:
        sys.exit("usage: readme.py README INCLUDE-DIR LIBRARY COMPILER FLAG...")
    readme, include, library = sys.argv[1:4]
    compiler = sys.argv[4:]
    program = first_c_block(readme) if os.path.exists(readme) else None
    if program is None:
        print(f"skipped: no C program in {readme}")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        source, binary = os.path.join(folder, "program.c"), os.path.join(folder, "program")
        with open(source, "w", encoding="utf-8") as file:
            file.write(program)
        # A static library brings what it needs itself along.
        needs = ["-fopenmp", "-lpthread", "-lm"] if library.endswith(".a") else []
        run([*compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-I" + include, source, library, *needs,
             "-Wl,-rpath," + os.path.dirname(library), "-o", binary], "compiling README's program")
        output = run([binary], "README's program")
    print(output, end="")
    if not output.strip() or "nan" in output.lower():
        sys.exit("README's program prints nothing, or NaN")


main()
