#!/usr/bin/env python3
"""Draws rows of compare.py or of `evo bench --json` as a picture: time over the floor, by shape and by contestant or kernel.

usage: python3 bench/plot.py ROWS.jsonl... -o PICTURE.png

A panel an op, compute mode and state; 1 is the floor. Rows without a floor are left out. Needs matplotlib.
"""
import argparse
import collections
import json
import math
import sys


def read(paths, wanted):
    """(panel, shape, name) -> time over floor: the least, where rows are of several files or directions. `wanted`: what a row must have."""
    points, left_out = {}, 0
    for path in paths:
        try:
            file = open(path)
        except OSError as why:
            sys.exit(f"plot.py: {path}: {why.strerror}")
        with file:
            for number, line in enumerate(file, 1):
                try:
                    row = json.loads(line)
                except ValueError as why:
                    sys.exit(f"plot.py: {path}:{number}: {why}")
                if not isinstance(row, dict) or "op" not in row:
                    continue  # facts of the run
                if any(row.get(key) not in values for key, values in wanted.items()):
                    continue
                if not row.get("times_floor"):
                    left_out += 1
                    continue
                panel = (row["op"], row["compute"], row.get("state", ""))
                name = row.get("contestant", row.get("kernel"))
                at = panel, row["shape"], name
                points[at] = min(points.get(at, math.inf), row["times_floor"])
    if left_out:
        print(f"{left_out} rows without a floor left out", file=sys.stderr)
    return points


def draw(points, path):
    try:
        import matplotlib  # here, so that --help needs none
    except ImportError:
        sys.exit("plot.py: no matplotlib here: pip install matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    panels = list(dict.fromkeys(panel for panel, _, _ in points))
    names = list(dict.fromkeys(name for _, _, name in points))
    columns = min(3, len(panels))
    figure, axes = pyplot.subplots(math.ceil(len(panels) / columns), columns, squeeze=False, layout="constrained",
                                   figsize=(4.6 * columns, 3.4 * math.ceil(len(panels) / columns)))
    marks = "osD^v<>PX*"
    for axis, panel in zip(axes.flat, panels):
        shapes = list(dict.fromkeys(shape for at, shape, _ in points if at == panel))
        lines = collections.defaultdict(list)
        for (at, shape, name), value in points.items():
            if at == panel:
                lines[name].append((shapes.index(shape), value))
        for name, line in lines.items():
            index = names.index(name)
            axis.plot(*zip(*sorted(line)), marks[index % len(marks)] + "-", color=f"C{index}", label=name, markersize=4, linewidth=1)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set(title=" ".join(filter(None, panel)), yscale="log", ylabel="time / floor")
        axis.yaxis.set_major_locator(ticker.LogLocator(10, (1, 2, 5)))
        axis.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        axis.yaxis.set_minor_formatter(ticker.NullFormatter())
        axis.set_xticks(range(len(shapes)), shapes, rotation=25, ha="right", fontsize=7)
        axis.grid(axis="y", which="both", linewidth=0.3)
    for axis in list(axes.flat)[len(panels):]:
        axis.set_axis_off()
    handles = {label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(4, len(handles)), fontsize=8)
    try:
        figure.savefig(path, dpi=100)
    except (OSError, ValueError) as why:
        sys.exit(f"plot.py: cannot write {path}: {getattr(why, 'strerror', None) or why}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", help="files of JSON rows")
    parser.add_argument("-o", "--output", required=True, help="the picture: .png, .svg or .pdf")
    parser.add_argument("--compute", action="append", metavar="MODE", help="only rows of it: bf16, fp32, ... (repeatable)")
    parser.add_argument("--state", action="append", metavar="STATE", help="only rows of it: sustained, burst or cold (repeatable)")
    options = parser.parse_args()
    points = read(options.rows, {key: values for key in ("compute", "state") if (values := getattr(options, key))})
    if not points:
        sys.exit("plot.py: no such row has a floor: nothing to draw")
    draw(points, options.output)


if __name__ == "__main__":
    main()
