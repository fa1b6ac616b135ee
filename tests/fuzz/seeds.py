# seeds.py: writes the seeds of the fuzz targets' corpora: golden files shortened to a few residues and channels, and small
# texts of every form that a reader takes. What a fuzzer found stands beside them, as found-*; this script leaves it alone.
# usage: seeds.py ROOT_OF_THE_SOURCES
import glob
import json
import os
import sys

root = sys.argv[1]
sys.path.insert(0, os.path.join(root, "tests", "cli"))
import arrays  # noqa: E402

CORPUS = os.path.join(root, "tests", "fuzz", "corpus")


def write(target, name, content):
    folder = os.path.join(CORPUS, target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())


# Golden file -> its extents, and strides and offsets of its views, made small.
SHORTENED = {
    "opm_03": {2: 1, 1: 1, 5: 2, 16: 2, 8: 1, 64: 1},
    "opm_05": {1: 1, 33: 2, 8: 2, 32: 2, 16: 3, 64: 4},
    "opm_14": {2: 1, 3: 2, 5: 2, 16: 2, 6: 2, 8: 1, 36: 4},
    "tri_inc_11": {1: 1, 31: 2, 16: 2, 32: 4, 2: 2},
    "tri_inc_15": {1: 1, 7: 2, 16: 2, 32: 4, 256: 4},
    "tri_out_07": {1: 1, 33: 2, 16: 3, 8: 2},
}


def shorten(name):
    golden = arrays.SafeTensors(glob.glob(os.path.join(root, "tests", "golden", name + "*"))[0])
    small, short = SHORTENED[name], arrays.SafeTensors()
    views = json.loads(golden.metadata["views"])
    for view in views.values():
        view["offset"] = small.get(view["offset"], view["offset"])
        view["strides"] = [small[stride] for stride in view["strides"]]
    short.header["__metadata__"] = {"op": golden.metadata["op"], "variant": golden.metadata["variant"],
                                    "views": json.dumps(views)}
    for tensor in golden.names():
        entry = golden.header[tensor]
        shape = [small[extent] for extent in entry["shape"]]
        count = 1
        for extent in shape:
            count *= extent
        short.add(tensor, entry["dtype"], shape, golden.values(tensor)[:count])
    return short


def readers():
    for name in SHORTENED:
        write("safetensors", name, shorten(name).bytes())
    one = arrays.SafeTensors()
    one.add("x", "F16", [2, 1], [1.0, 2.0])
    one.add("y", "U8", [], [7])
    one.add("z", "F64", [0, 2 ** 53 - 1], [])
    write("safetensors", "arrays", one.bytes())
    for dtype, shape in (("F64", [2, 3]), ("F32", [3]), ("F16", []), ("U8", [0, 4])):
        count = 1
        for extent in shape:
            count *= extent
        write("npy", dtype.lower(), arrays.npy(dtype, shape, [1] * count))
    write("npy", "version-2", arrays.npy("F32", [1, 2, 3, 4], range(24), version=2))
    write("npy", "version-3", arrays.npy("F32", [2], [1, 2], version=3).replace(b"'", b'"'))


def alignments():
    with open(os.path.join(root, "examples", "data", "PF00071.aln")) as file:
        rows = [line.strip()[:30] for line in file][:6]
    write("alignment", "lines", "\n".join(rows) + "\n")
    write("alignment", "lines-crlf", b"\xef\xbb\xbf" +
          "\r\n\r\n".join(row.lower().replace("g", ".").replace("a", "*") for row in rows).encode())
    write("alignment", "fasta", "".join(f">s{k} some words\n{row[:20]}\n{row[20:]}\n" for k, row in enumerate(rows)))
    blocks = "".join("\n" + "".join(f"s{k}/1-30  {row[start:start + 10]}\n" for k, row in enumerate(rows))
                     + "#=GC SS_cons ----------\n" for start in (0, 10, 20))
    write("alignment", "stockholm", "# STOCKHOLM 1.0\n#=GF ID Ras\n" + blocks + "//\n")
    with open(os.path.join(root, "examples", "data", "PF00071.evfold.tsv")) as file:
        write("pairs", "evfold", bytes([158]) + "".join(list(file)[:12]).encode())
    write("pairs", "comments", bytes([99]) + b"# i j\n1 9\n2\t20 0.5 3 4\n9 1 1e-3\n\n100 7 -2.5\n")


def variants():
    for name in SHORTENED:
        golden = shorten(name)
        write("variant", name, bytes([golden.metadata["op"] == "trimul"]) + golden.metadata["variant"].encode())
    write("variant", "name", b"\0boltz")
    write("variant", "name-trimul", b"\1alphafold3")


ARGUMENTS = {
    "none": [""], "help": ["--help"], "version": ["--version"], "info": ["info"], "info-json": ["info", "--json"],
    "info-report": ["info", "--report"],
    "selftest": ["selftest", "--device", "cpu", "--seconds", "0", "--seed", "7", "--json"],
    "run-help": ["run", "--help"], "check-list": ["check", "--list", "--op", "opm", "--dtype", "bf16"],
    "run-file": ["run", "opm.safetensors", "--device", "cpu"],
    "run-file-more": ["run", "trimul.safetensors", "-o", "out.safetensors", "--dtype", "bf16", "--compute", "tf32",
                      "--mask", "none", "--direction", "incoming"],
    "run-file-save": ["run", "opm.safetensors", "--save-case", "new.safetensors", "--kernel=reference",
                      "--weights", "a.bias=opm.safetensors", "--count-eps", "0.5", "--workspace-limit", "4K"],
    "run-files": ["run", "--op", "trimul", "--input", "z.npy", "--weights", "trimul.safetensors", "-o", "out.npy",
                  "--residual", "z.npy", "--mask", "trimul.safetensors"],
    "run-peer": ["run", "--op=opm", "--input", "opm.safetensors", "--weights", "opm.safetensors", "--weights-from",
                 "openfold", "--weights-prefix", "x."],
    "run-shape": ["run", "--op", "opm", "--shape", "1,2,3,4,2,5", "--variant", "boltz", "--seed", "7", "-o", "o.npy"],
    "run-shape-trimul": ["run", "--op", "trimul", "--shape", "2,3,4,2,5", "--biases", "a_proj,out", "--gate-input=raw"],
    "run-case": ["run", "--case", "opm(variant=boltz,dtype=fp16,s=2,n=3,c_m=4,c=2,c_z=3,residual=1,layout=padded)"],
    "check-case": ["check", "--case", "trimul(n=3,c=2,c_z=4,direction=incoming,mask=row,alias=input,weights=mixed)",
                   "--case", "opm(n=2,mask=none,input=nan,layout=negative,weight_layout=interleaved)"],
    "check-golden": ["check", "--golden", "opm.safetensors", "trimul.safetensors", "--json", "--compute", "fp64"],
    "check-golden-all": ["check", "--golden", ".", "--filter", "*mul*", "--kernel", "blocked", "--dtype=fp16"],
    "bench": ["bench", "opm", "--shape=1,2,3,4,2,5", "--json", "--all-kernels", "--ceilings=copy=9,fp32=1"],
    "bench-file": ["bench", "--shapes=shapes.txt", "--no-mask", "--residual", "--device", "cpu", "--dtype", "bf16"],
    "bench-more": ["bench", "trimul", "--shape=1,2,4,3", "--direction", "both", "--cold", "--biases=none",
                   "--ceilings=none", "--compute=fp16", "--workspace-limit=1K"],
    "overflow": ["run", "--op", "opm", "--shape", "1,1,4611686018427387904,2,2,2"],
}


def arguments():
    for name, lines in ARGUMENTS.items():
        write("arguments", name, "\n".join(lines))


# Small programs for api.c, byte by byte as it takes them.
def problem(op, alias=0, free=0, together=0, dtype=0):
    sizes = [0, 0, 0, 3, 2, 4] if op == 0 else [0, 0, 3, 2, 2]
    params = [1] * (7 if op == 0 else 5)
    choices = [dtype, 0, 0, 0, 1, 0, 0, alias, 0, 0, 0]  # dtype ... layout; 1: a residual
    layout = [free] + [5, 7, 1, 2, 1, 0, 1, 2] if free else [0]
    return bytes([op, 0] + sizes + params + choices + [7] + layout * 4 + [0, 0, together] + [0] * 14)


PLAN, PACK, RUN = bytes([4, 0, 0, 0, 9]), bytes([6, 0, 0, 31, 4]), bytes([8, 0, 0, 4, 31])
GRAPH = bytes([11, 0, 0, 13, 0, 0, 0, 8, 0, 0, 0, 31, 13, 0, 0, 1, 13, 0, 0, 2, 4])


def programs():
    for op in (0, 1):
        for name, options in (("plain", {}), ("in-place", {"alias": 3}), ("strided", {"free": 1}),
                              ("together", {"together": 1}), ("bf16", {"dtype": 1})):
            write("api", f"{'trimul' if op else 'opm'}-{name}",
                  bytes([0]) + problem(op, **options) + PLAN + PACK + RUN + GRAPH + RUN)
    write("api", "contexts", bytes([0]) + problem(0) + bytes([0, 0, 0, 2, 3, 3, 4, 0, 0, 0, 9, 1, 0]) + PACK + RUN)


readers()
programs()
alignments()
variants()
arguments()
