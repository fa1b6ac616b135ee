"""python -m evoformer info: what the package holds and which devices it finds."""
import argparse

from . import _library as lib


def info() -> None:
    print(lib.build_info())
    print(f"library: {lib.path()}")
    print(f"OpenMP:  {lib.openmp}")
    for backend in lib.backends():
        state = ("not compiled in" if not backend.compiled else
                 f"{backend.device_count} device{'' if backend.device_count == 1 else 's'}"
                 + (f" ({backend.missing})" if backend.missing else "")
                 + (f", kernels for {backend.images}" if backend.images else ""))
        print(f"backend {backend.name}: {state}")
    for device in lib.devices():
        print(f"device {device.name}: {device.description}, {device.arch}, {device.compute_units} compute units")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m evoformer", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="the build, its backends and the devices")
    parser.parse_args()
    info()


if __name__ == "__main__":
    main()
