# prefix.py: an installation that was moved, and the environment in which programs are built from it.
import fcntl
import glob
import os
import shutil
import subprocess
import sys


def run(command, what, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, **more)
    print(done.stdout, end="")
    if done.returncode != 0:
        sys.exit(f"{what} gives status {done.returncode}")


def install(build, folder):
    """Installs with DESTDIR and moves what is under the prefix; returns the new prefix, and libdir in it."""
    destdir, moved = f"{folder}/destdir", f"{folder}/moved"
    with open(f"{build}/build.ninja", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one installation at a time writes Meson's log
        run(["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", destdir], "meson install")
    pc = glob.glob(f"{destdir}/**/evoformer.pc", recursive=True)
    if len(pc) != 1:
        sys.exit(f"evoformer.pc was installed {len(pc)} times")
    libdir = os.path.dirname(os.path.dirname(pc[0]))
    prefix = libdir
    while not os.path.isdir(f"{prefix}/include"):
        prefix = os.path.dirname(prefix)
    shutil.move(prefix, moved)
    shutil.rmtree(destdir)
    for path in glob.glob(f"{moved}/**/*.pc", recursive=True) + glob.glob(f"{moved}/**/*.cmake", recursive=True):
        with open(path, encoding="utf-8") as file:
            if prefix[len(destdir):] in file.read():
                sys.exit(f"{path} holds the prefix that it was installed for, so it cannot be moved")
    return moved, os.path.relpath(libdir, prefix)


def environment(source, folder):
    """The caller's, less what would change how programs are built, plus what a small machine needs for MPI as root."""
    kept = {name: value for name, value in os.environ.items()
            if name not in ("DESTDIR", "CFLAGS", "CXXFLAGS", "FFLAGS", "LDFLAGS", "PKG_CONFIG_PATH", "LD_LIBRARY_PATH")}
    return {**kept, "HOME": folder, "LIBEVOFORMER": source, "EVO_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1"}
