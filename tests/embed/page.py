# page.py: reads docs/embedding.md, whose code is copied from files that tests build.
# usage: page.py SOURCE-DIR            exit status 1 if a copy differs from its file, or code has no file
#        page.py SOURCE-DIR --write    copies the files into the page
#
# A block of code follows a line <!-- FILE --> (the whole file) or <!-- part of FILE -->. Commands are ```sh blocks: they
# have no file, since embed.py runs them from the page itself. Headings: ## LANGUAGE, ### WAY.
import re
import sys

BLOCK = re.compile(r"(?:<!-- (?P<part>part of )?(?P<file>[\w./+-]+) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)


def sections(path):
    """(language, way, text), way "" before the language's first ### heading."""
    with open(path, encoding="utf-8") as file:
        pieces = re.split(r"^(##+ .*)$", file.read(), flags=re.M)
    language = way = ""
    for heading, text in zip(pieces[1::2], pieces[2::2]):
        level, title = heading.split(" ", 1)
        language, way = (title, "") if level == "##" else (language, title)
        yield language, way, text


def way(path, language, wanted):
    """
    The files {name: text} that a reader writes who follows one way, and the commands. A way called "Meson subproject"
    has the files of "Meson" too.
    """
    files, commands = {}, []
    for title, name, text in sections(path):
        if title != language or name and not f"{wanted} ".startswith(f"{name} "):
            continue
        for block in BLOCK.finditer(text):
            if block["file"] and not block["part"]:
                files[block["file"]] = block["text"]
            elif block["kind"] == "sh" and name in ("", wanted):
                commands.append(block["text"])
    if not commands:
        sys.exit(f"{path}: no commands for {language}, {wanted}")
    return files, "\n".join(commands)


def check(source, write):
    path, wrong, copies = f"{source}/docs/embedding.md", [], 0
    with open(path, encoding="utf-8") as file:
        page = file.read()

    def copy(block):
        nonlocal copies
        if block["kind"] in ("sh", "text") and not block["file"]:
            return block[0]
        if not block["file"]:
            wrong.append("code of no file: " + block["text"].split("\n")[0])
            return block[0]
        with open(f"{source}/{block['file']}", encoding="utf-8") as file:
            text = file.read()
        copies += 1
        if block["part"]:
            if block["text"] not in text:
                wrong.append(f"{block['file']} has no such part: " + block["text"].split("\n")[0])
        elif block["text"] != text:
            wrong.append(f"{block['file']} is not what its copy says")
            return block[0][:block.start("text") - block.start()] + text + "```"
        return block[0]

    new = BLOCK.sub(copy, page)
    if write:
        with open(path, "w", encoding="utf-8") as file:
            file.write(new)
        wrong = []
    # Every way with commands is a test: tests/embed/meson.build lists them.
    with open(f"{source}/tests/embed/meson.build", encoding="utf-8") as file:
        tests = file.read()
    for language, name, text in sections(path):
        if "```sh" in text and f"['{language}', '{name}'" not in tests:
            wrong.append(f"no test follows {language}, {name}")
    print("\n".join(wrong + [f"{copies} copies"]))
    sys.exit(1 if wrong or copies == 0 else 0)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--write"]):
        sys.exit("usage: page.py SOURCE-DIR [--write]")
    check(sys.argv[1], sys.argv[2:] == ["--write"])
