"""Writes the C table of the golden files that are part of the evo command.

known.py TARGET FILE...: TARGET becomes a C file that defines known_answers (known.h).
"""

import sys
from pathlib import Path

HEAD = """/* Made by tools/evo/known.py: golden files as they are. */
#include "evo/known.h"
"""

FILE = """
__asm__(".section .rodata\\n"
        ".balign 16\\n"
        "known_{index}_begin:\\n"
        ".incbin \\"{path}\\"\\n"
        "known_{index}_end:\\n"
        ".globl known_{index}_begin, known_{index}_end\\n"
        ".hidden known_{index}_begin, known_{index}_end\\n"
        ".previous\\n");
extern const unsigned char known_{index}_begin[] __attribute__((visibility("hidden")));
extern const unsigned char known_{index}_end[] __attribute__((visibility("hidden")));
"""


def main() -> None:
    target, files = sys.argv[1], [Path(path).resolve() for path in sys.argv[2:]]
    text = HEAD + "".join(FILE.format(index=index, path=path) for index, path in enumerate(files))
    rows = "".join(f'    {{ "{path.stem}", known_{index}_begin, known_{index}_end }},\n'
                   for index, path in enumerate(files))
    text += f"\nconst struct known_answer known_answers[] = {{\n{rows}    {{ 0, 0, 0 }},\n}};\n"
    Path(target).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
