"""Makes the table of what each kernel uses on each architecture, and fails on spills.

resources.py TABLE SPILLS ARCH:IMAGE...: reads IMAGE.log (nvcc with -Xptxas -v, clang with
-Rpass-analysis=kernel-resource-usage). Every line of SPILLS, "kernel arch reason", allows one kernel to spill
there ("*": on every architecture); one that does not spill any more must go. AMD's scalar registers spill to lanes
of vector registers, which are counted; that is no spill.
"""

import re
import sys
from pathlib import Path

NVIDIA = re.compile(
    r"Function properties for (?P<name>\w+)\s+(?P<scratch>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads\s+ptxas info\s*: Used (?P<registers>\d+) registers(?P<rest>.*)")
AMD = re.compile(
    r"Function Name: (?P<name>\w+).*? VGPRs: (?P<registers>\d+)(?:.*? AGPRs: (?P<more>\d+))?.*?ScratchSize \[bytes/lane\]: (?P<scratch>\d+).*?SGPRs Spill: (?P<scalar>\d+).*?"
    r"VGPRs Spill: (?P<vector>\d+).*?LDS Size \[bytes/block\]: (?P<shared>\d+)", re.DOTALL)


def read_log(text: str) -> list[tuple[str, int, int, int, int]]:
    """Kernels of one log: name, registers, spilled bytes or registers, scratch bytes a thread, static shared memory."""
    found = []
    for match in NVIDIA.finditer(text):
        shared = re.search(r"(\d+) bytes smem", match["rest"])
        spills = int(match["stores"]) + int(match["loads"])
        found.append((match["name"], int(match["registers"]), spills, int(match["scratch"]),
                      int(shared[1]) if shared else 0))
    for match in AMD.finditer(text):
        registers = int(match["registers"]) + int(match["more"] or 0)
        found.append((match["name"], registers, int(match["vector"]), int(match["scratch"]),
                      int(match["shared"])))
    return found


def main() -> int:
    table, spills, images = Path(sys.argv[1]), Path(sys.argv[2]), [text.split(":", 1) for text in sys.argv[3:]]
    allowed = [line.split(None, 2) for line in spills.read_text(encoding="utf-8").splitlines()
               if line and not line.startswith("#")]
    rows, wrong, used = [], [], set()
    for arch, image in images:
        kernels = read_log(Path(image + ".log").read_text(encoding="utf-8"))
        if not kernels:
            wrong.append(f"{image}.log names no kernel: has the compiler changed how it reports?")
        for name, registers, spilled, scratch, shared in kernels:
            rows.append((name, arch, registers, spilled, scratch, shared))
            match = [n for n, entry in enumerate(allowed) if entry[0] == name and entry[1] in (arch, "*")]
            used.update(match if spilled else [])
            if spilled and not match:
                wrong.append(f"{name} spills on {arch} ({spilled}), and {spills} gives no reason")
    archs = {arch for arch, _ in images}
    wrong += [f"{spills}: {entry[0]} does not spill on {entry[1]} any more" for n, entry in enumerate(allowed)
              if n not in used and (entry[1] in archs or entry[1] == "*")]
    lines = [f"{'kernel':26} {'arch':8} {'registers':>9} {'spilled':>8} {'scratch bytes':>13} {'static shared bytes':>20}"]
    lines += [f"{name:26} {arch:8} {registers:9} {spilled:8} {scratch:13} {shared:20}"
              for name, arch, registers, spilled, scratch, shared in sorted(rows)]
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.stderr.writelines(line + "\n" for line in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
