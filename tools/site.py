# site.py: builds the documentation site from docs/ and the public headers with Doxygen, and checks every link in it.
# usage: site.py OUTPUT-DIR      OUTPUT-DIR/index.html is the first page
# Exit status 1 for any warning of Doxygen (a public name without a comment is one) and any link that leads nowhere.
import glob
import html
import os
import re
import subprocess
import sys
import urllib.parse

# Doxygen's own: it links to lists of a page's private classes and hidden macros, which it then leaves out.
DOXYGENS_OWN = {"nested-classes", "define-members"}


def build(root, output):
    with open(f"{root}/include/evoformer/version.h", encoding="utf-8") as file:
        version = ".".join(re.findall(r"^#define EVO_VERSION_\w+ (\d+)$", file.read(), re.M))
    with open(f"{root}/docs/Doxyfile", encoding="utf-8") as file:
        settings = file.read() + f'\nOUTPUT_DIRECTORY = "{output}"\nPROJECT_NUMBER = {version}\n'
    os.makedirs(output, exist_ok=True)
    for page in glob.glob(f"{output}/*.html"):
        os.remove(page)
    try:
        done = subprocess.run(["doxygen", "-"], input=settings, cwd=root, universal_newlines=True)
    except FileNotFoundError:
        sys.exit("site.py: no doxygen; sh tools/install-deps.sh --all installs it")
    if done.returncode != 0:
        sys.exit(f"site.py: doxygen gives status {done.returncode}")


def broken_links(output):
    texts = {}
    for path in glob.glob(f"{output}/*.html"):
        with open(path, encoding="utf-8") as file:
            texts[os.path.basename(path)] = file.read()
    names = {page: set(re.findall(r'(?:id|name)="([^"]+)"', text)) for page, text in texts.items()}
    for page, text in sorted(texts.items()):
        for link in sorted(set(re.findall(r'(?:href|src)="([^"]+)"', text))):
            link = html.unescape(link)
            if re.match(r"(https?|javascript|mailto):", link):
                continue
            target, _, name = link.partition("#")
            target = urllib.parse.unquote(target) or page
            if not os.path.exists(f"{output}/{target}"):
                yield f"{page}: {link}: no such file"
            elif name and name not in names.get(target, {name}) | DOXYGENS_OWN:
                yield f"{page}: {link}: no such place"


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: site.py OUTPUT-DIR")
    output = os.path.abspath(sys.argv[1])
    build(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), output)
    broken = list(broken_links(output))
    print("\n".join(broken + [f"{len(glob.glob(output + '/*.html'))} pages: {output}/index.html"]))
    sys.exit(1 if broken or not os.path.exists(f"{output}/index.html") else 0)


main()
