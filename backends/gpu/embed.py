"""Writes the C table of a backend's images.

embed.py VENDOR TARGET ARCH:UNIT:IMAGE...: TARGET becomes a C file that defines evo_VENDOR_images (gpu.h)
and evo_VENDOR_image_names. An empty IMAGE stands for one that only simulated devices take.
"""

import sys
from pathlib import Path

HEAD = """/* Made by backends/gpu/embed.py: the compiled kernels. */
#include "backends/gpu/gpu.h"
"""

# PTX is a text that ends with a zero byte; after a binary image the byte is harmless.
IMAGE = """
__asm__(".section .rodata\\n"
        ".balign 64\\n"
        ".globl evo_{vendor}_image_{index}_begin, evo_{vendor}_image_{index}_end\\n"
        ".hidden evo_{vendor}_image_{index}_begin, evo_{vendor}_image_{index}_end\\n"
        "evo_{vendor}_image_{index}_begin:\\n"
        ".incbin \\"{path}\\"\\n"
        ".byte 0\\n"
        "evo_{vendor}_image_{index}_end:\\n"
        ".previous\\n");
extern const unsigned char evo_{vendor}_image_{index}_begin[] __attribute__((visibility("hidden")));
extern const unsigned char evo_{vendor}_image_{index}_end[] __attribute__((visibility("hidden")));
"""

SIMULATED = """
static const unsigned char simulated[] = "simulated";
"""


def main() -> None:
    vendor, target, images = sys.argv[1], sys.argv[2], [text.split(":", 2) for text in sys.argv[3:]]
    text, rows = HEAD, []
    if any(not path for _, _, path in images):
        text += SIMULATED
    for index, (arch, unit, path) in enumerate(images):
        begin, end = "simulated", "simulated + sizeof simulated"
        if path:
            text += IMAGE.format(vendor=vendor, index=index, path=Path(path).resolve())
            begin, end = f"evo_{vendor}_image_{index}_begin", f"evo_{vendor}_image_{index}_end"
        rows.append(f'    {{ "{arch}", "{unit}", {begin}, {end} }},\n')
    names = " ".join(dict.fromkeys(arch for arch, _, _ in images))
    text += f"\nextern const gpu_image evo_{vendor}_images[];\nextern const char evo_{vendor}_image_names[];\n"
    text += f'const char evo_{vendor}_image_names[] = "{names}";\n'
    text += f"const gpu_image evo_{vendor}_images[] = {{\n{''.join(rows)}    {{ NULL, NULL, NULL, NULL }},\n}};\n"
    Path(target).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
