"""Compiles one kernel source to one image, and keeps what the compiler says about it.

compile.py IMAGE COMMAND...: the command writes IMAGE. Its output goes to IMAGE.log, for resources.py,
and is shown only if it fails.
"""

import subprocess
import sys


def main() -> int:
    image, command = sys.argv[1], sys.argv[2:]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with open(image + ".log", "w", encoding="utf-8") as log:
        log.write(done.stdout)
    if done.returncode:
        sys.stderr.write(" ".join(command) + "\n" + done.stdout)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
