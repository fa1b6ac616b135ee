# installed.py: everything that an installation promises is in it, and its command runs where it was moved.
# usage: installed.py BUILD-DIR shared|static|both HEADER...
import glob
import os
import re
import shutil
import sys
import tempfile

from prefix import environment, install, run


def main():
    if len(sys.argv) < 4 or sys.argv[2] not in ("shared", "static", "both"):
        sys.exit("usage: installed.py BUILD-DIR shared|static|both HEADER...")
    build, kind, headers = sys.argv[1], sys.argv[2], sys.argv[3:]
    with tempfile.TemporaryDirectory() as folder:
        prefix, libdir = install(build, folder)
        promised = [f"include/{name}" for name in headers] + [
            "include/evoformer/evoformer.f90", "share/licenses/libevoformer/LICENSE", f"{libdir}/pkgconfig/evoformer.pc",
            "bin/evo", "share/man/man1/evo.1",
            f"{libdir}/cmake/evoformer/evoformer-config.cmake", f"{libdir}/cmake/evoformer/evoformer-config-version.cmake"]
        if kind != "shared":
            promised.append(f"{libdir}/libevoformer.a")
        if kind != "static":
            found = [os.path.basename(name) for name in glob.glob(f"{prefix}/{libdir}/libevoformer.so*")]
            if not any(re.fullmatch(r"libevoformer\.so\.\d+\.\d+\.\d+", name) for name in found):
                sys.exit(f"no libevoformer.so.X.Y.Z among {found}")
            promised.append(f"{libdir}/libevoformer.so")
        missing = [name for name in promised if not os.path.exists(f"{prefix}/{name}")]
        more = [name for name in glob.glob("include/**/*", root_dir=prefix, recursive=True)
                if os.path.isfile(f"{prefix}/{name}") and name not in promised]
        if missing or more:
            sys.exit(f"missing: {missing}; not promised: {more}")
        env = environment("", folder)
        run([f"{prefix}/bin/evo", "info"], "evo info", env=env)
        run([f"{prefix}/bin/evo", "check", "--case", "opm(n=9)", "--case", "trimul(n=9)"], "evo check", env=env)
        if shutil.which("man"):
            run(["man", "-l", "--warnings", f"{prefix}/share/man/man1/evo.1"], "man", env={**env, "MANPAGER": "cat"})
        print(f"{len(promised)} files")


main()
