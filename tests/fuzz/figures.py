# figures.py: the figures of fuzz runs as a table, from the logs that run.sh leaves (TARGET.work/log beside each program).
# usage: figures.py LOG... [--into PAGE.md]     replaces the page's table between its lines <!-- figures --> and <!-- end -->
import os
import re
import sys


def row(path):
    with open(path, errors="replace") as file:
        text = file.read()
    name = os.path.basename(os.path.dirname(path)).replace("fuzz_", "").replace(".work", "")
    last = re.findall(r"^#(\d+)\s.* cov: (\d+) ft: (\d+) corp: (\d+)/(\w+)", text, re.M)[-1]
    done = re.search(r"^Done (\d+) runs in (\d+) second", text, re.M)
    crashed = "==ERROR" in text.replace(" ", "") and done is None
    state = done.group(2) if done else "stopped at a finding" if crashed else "still running"
    return [name, f"{int(done.group(1) if done else last[0]):,}", state, last[1], last[2], last[3], last[4]]


logs = sys.argv[1:]
page = logs.pop(logs.index("--into") + 1) if "--into" in logs else None
logs = [log for log in logs if log != "--into"]
head = ["target", "executions", "seconds", "edges", "features", "inputs kept", "of size"]
rows = [head, ["---"] * len(head)] + sorted(row(log) for log in logs)
table = "".join("| " + " | ".join(cells) + " |\n" for cells in rows)
if page is None:
    print(table, end="")
else:
    with open(page) as file:
        old = file.read()
    new = re.sub(r"(<!-- figures -->\n).*?(<!-- end -->)", lambda m: m.group(1) + table + m.group(2), old, flags=re.S)
    with open(page, "w") as file:
        file.write(new)
