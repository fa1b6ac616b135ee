# generate.py: writes evoformer.f90, the Fortran module, from the public headers.
# usage: generate.py INCLUDE-DIR              prints the module
#        generate.py INCLUDE-DIR --check FILE exit status 1 if FILE is not what it would print
#        generate.py INCLUDE-DIR --c          prints C that compiles only if the layouts and values found here are true
#
# The headers keep to a few forms (enums, structs that begin with `size` and have an _INIT macro, handles, functions
# marked EVO_API); whatever has another form is an error here, so nothing can be left out unseen.
import difflib
import re
import sys
import textwrap

# Parameters that may be NULL and are not plain addresses: optional arguments in Fortran.
OPTIONAL = {("evo_context_create", "options")}

SCALARS = {  # C type: Fortran type, kind of its constants, bytes
    "size_t": ("integer(c_size_t)", "_c_size_t", 8),
    "int64_t": ("integer(c_int64_t)", "_c_int64_t", 8),
    "double": ("real(c_double)", "_c_double", 8),
    "float": ("real(c_float)", "_c_float", 4),
    "int": ("integer(c_int)", "", 4),
    "unsigned": ("integer(c_int)", "", 4),
}

HEAD = """\
! evoformer.f90: the Fortran interface of libevoformer {version}, written by bindings/fortran/generate.py from the C headers.
! Do not edit it: change the headers and run `python3 bindings/fortran/generate.py include > bindings/fortran/evoformer.f90`.
!
! Functions, constants and components have their C names; the headers (include/evoformer) and docs/ops.md say what they
! mean. What differs:
!
! - Index order. A tensor that C writes [B, N, N, c_z], the last index fastest, is z(c_z, N, N, B) here, the first index
!   fastest: the same memory, read from the other end. The comments on components below give shapes in Fortran's order.
!   A pair [i, j] of C is (:, j, i) in Fortran. `strides` keep C's order: strides(1) belongs to C's first index, which is
!   Fortran's last.
! - Weights. A matrix that C calls [out, in] is w(in, out) here. Whoever has w(out, in) says so by strides and copies
!   nothing: evo_weight(c_loc(w), EVO_FP32, [1_c_int64_t, size(w, 1, c_int64_t)]).
! - Structs start with their defaults (those of the _INIT macros), `size` among them: declare one and set what differs.
!   Inside a procedure do not initialise it in the declaration: that would make it `save`.
! - Strings that go in end with c_null_char. Strings that come out are pointers: evo_string() makes character of them.
! - Tensors are addresses of device memory, type(c_ptr): from evo_memory_alloc, or, on the device "cpu", c_loc(array) of
!   an array with the attribute target. Handles (context, plan, pack, stream, event, graph) are type(c_ptr) too;
!   c_null_ptr stands for C's NULL.
module evoformer
    use, intrinsic :: iso_c_binding
    implicit none
    public
"""

TAIL = """
contains

    !> The text of a C string, such as evo_last_error(); "" for NULL.
    function evo_string(address) result(text)
        type(c_ptr), intent(in) :: address
        character(:), allocatable :: text
        character(kind=c_char), pointer :: letters(:)
        integer :: length, i
        interface
            pure function strlen(s) bind(c)
                import
                type(c_ptr), value :: s
                integer(c_size_t) :: strlen
            end function strlen
        end interface

        length = 0
        if (c_associated(address)) length = int(strlen(address))
        allocate(character(length) :: text)
        if (length > 0) then
            call c_f_pointer(address, letters, [length])
            do i = 1, length
                text(i:i) = letters(i)
            end do
        end if
    end function evo_string

end module evoformer
"""


def fail(text):
    sys.exit("generate.py: " + text)


class Headers:
    """What the headers declare, in the order in which evoformer.h includes them."""

    def __init__(self, folder):
        self.folder = folder
        self.macros = {}     # name: (parameter or None, text)
        self.enums = []      # (comment, [(name, value, comment)])
        self.enum_types = set()
        self.structs = {}    # name: (comment, [(C type, name, count or None, comment)])
        self.opaque = []     # handles behind pointers
        self.addresses = []  # typedefs of void *
        self.callbacks = {}  # name: (comment, return type, [(C type, name)])
        self.functions = []  # (comment, return type, name, [(C type, name)])
        self.order = []      # ("enum", i) or ("struct", name)
        self.seen = set()
        self.read("evoformer.h")

    def read(self, name):
        if name in self.seen:
            return
        self.seen.add(name)
        with open(f"{self.folder}/evoformer/{name}", encoding="utf-8") as file:
            text = file.read()
        for other in re.findall(r'^#include "evoformer/(\w+\.h)"$', text, re.M):
            self.read(other)
        for macro, parameter, value in re.findall(r"^#define (\w+)(?:\((\w+)\))?((?:.*\\\n)*.*)$", text, re.M):
            self.macros[macro] = (parameter or None, " ".join(re.sub(r"\\\n|/\*.*?\*/", " ", value, flags=re.S).split()))
        text = re.sub(r"^#ifdef __cplusplus\n.*?^#endif\n", "", text, flags=re.M | re.S)
        text = re.sub(r"^#(?:.*\\\n)*.*$", "", text, flags=re.M)
        self.declarations(name, text)

    def declarations(self, header, text):
        forms = [
            (r"/\*\*(?!<)(?P<doc>.*?)\*/", self.comment),
            (r"/\*(?!\*).*?\*/", lambda m: None),
            (r"(?:typedef )?enum(?: (?P<tag>\w+))? \{(?P<body>[^}]*)\}(?: (?P<name>\w+))?;", self.enum),
            (r"typedef struct (?P<tag>\w+) \{(?P<body>[^}]*)\} (?P<name>\w+);", self.struct),
            (r"typedef struct (?P<tag>\w+) (?P<name>\w+);", lambda m: self.opaque.append(m["name"])),
            (r"typedef void \*(?P<name>\w+);", lambda m: self.addresses.append(m["name"])),
            (r"typedef (?P<type>\w+) \(\*(?P<name>\w+)\)\((?P<arguments>[^)]*)\);", self.callback),
            (r"EVO_API (?P<type>(?:const )?\w+(?: \*)?) ?(?P<name>evo_\w+)\((?P<arguments>[^)]*)\);", self.function),
        ]
        self.doc = ""
        while text.strip():
            text = text.lstrip()
            for pattern, take in forms:
                match = re.match(pattern, text, re.S)
                if match:
                    break
            else:
                fail(f"{header}: cannot read: " + text.split("\n")[0])
            take(match)
            if take != self.comment:
                self.doc = ""
            text = text[match.end():]

    def comment(self, match):
        lines = [re.sub(r"^ ?\* ?", "", line.strip()).rstrip() for line in match["doc"].split("\n")]
        self.doc = "\n".join(lines).strip()

    def members(self, body):
        """Declarations with the comment behind each: (text, comment)."""
        found = []
        for text, inner, doc in re.findall(r"([^;,/]+)[;,]?\s*(?:/\*\*<(.*?)\*/)?|/\*\*(.*?)\*/", body, re.S):
            if text.strip():
                found.append((" ".join(text.split()), " ".join(re.sub(r"\n\s*\*?", " ", inner).split())))
            elif doc:
                fail("a comment before a member; they stand behind it: " + doc)
        return found

    def enum(self, match):
        values = []
        for text, doc in self.members(match["body"]):
            name, equals, value = text.partition(" = ")
            if not equals:
                fail(f"enumerator without a value: {text}")
            values.append((name, int(value), doc))
        if match["name"]:
            self.enum_types.add(match["name"])
        self.order.append(("enum", len(self.enums)))
        self.enums.append((self.doc, values))

    def struct(self, match):
        fields = []
        for text, doc in self.members(match["body"]):
            field = re.fullmatch(r"((?:const )?\w+) (\*?)(\w+)(?:\[(\d+)\])?", text)
            if not field:
                fail(f"{match['name']}: cannot read the component: {text}")
            fields.append((field[1] + (" *" if field[2] else ""), field[3], int(field[4]) if field[4] else None, doc))
        self.order.append(("struct", match["name"]))
        self.structs[match["name"]] = (self.doc, fields)

    @staticmethod
    def arguments(text):
        found = []
        for part in " ".join(text.split()).split(", "):
            argument = re.fullmatch(r"((?:const )?\w+) (\**)(\w+)", part)
            if argument:
                found.append((argument[1] + (" " + argument[2] if argument[2] else ""), argument[3]))
            elif part != "void":
                fail(f"cannot read the argument: {part}")
        return found

    def callback(self, match):
        self.callbacks[match["name"]] = (self.doc, match["type"], self.arguments(match["arguments"]))

    def function(self, match):
        self.functions.append((self.doc, match["type"], match["name"], self.arguments(match["arguments"])))

    # --- layouts ---------------------------------------------------------------------------------

    def size_and_alignment(self, type_name):
        if type_name in self.structs:
            return self.layout(type_name)[1:]
        if type_name in self.enum_types:
            size = 4
        elif type_name.endswith("*") or type_name in self.addresses or type_name in self.callbacks:
            size = 8
        elif type_name == "char":
            size = 1
        elif type_name in SCALARS:
            size = SCALARS[type_name][2]
        else:
            fail(f"unknown type {type_name}")
        return size, size

    def layout(self, name):
        """Offsets of a struct's fields, its size and alignment, where pointers and size_t have 64 bits."""
        at, widest, offsets = 0, 1, []
        for type_name, _, count, _ in self.structs[name][1]:
            size, alignment = self.size_and_alignment(type_name)
            at = -(-at // alignment) * alignment
            offsets.append(at)
            at += size * (count or 1)
            widest = max(widest, alignment)
        return offsets, -(-at // widest) * widest, widest


# --- Fortran -----------------------------------------------------------------------------------------

def comment_lines(doc, indent):
    """A C comment as Fortran's, shapes as they are."""
    lines = []
    for paragraph in re.split(r"\n(?=@|- )", doc):
        paragraph = paragraph.replace("@returns", "Returns")
        lines += textwrap.wrap(" ".join(paragraph.split()), 114 - len(indent), break_on_hyphens=False)
    return [f"{indent}!{'>' if i == 0 else ' '} {line}" for i, line in enumerate(lines)]


def reversed_shapes(doc):
    """Shapes in Fortran's index order: [B, S, N, c_m] becomes (c_m, N, S, B)."""
    return re.sub(r"\[([^\[\]]+)\]", lambda m: "(" + ", ".join(reversed(m[1].split(", "))) + ")", doc)


def wrapped(line):
    """A statement in lines of at most 120 columns."""
    indent = " " * (len(line) - len(line.lstrip()) + 8)
    lines = textwrap.wrap(line.strip(), 116 - len(indent), break_long_words=False, break_on_hyphens=False)
    return [(indent[8:] if i == 0 else indent) + text + (" &" if i + 1 < len(lines) else "")
            for i, text in enumerate(lines)]


def split_initialiser(text):
    """The parts of "{ a, { b, c }, F(d, e) }"."""
    if not (text.startswith("{") and text.endswith("}")):
        fail(f"not an initialiser: {text}")
    parts, depth = [""], 0
    for letter in text[1:-1]:
        depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


class Module:
    def __init__(self, headers):
        self.h = headers

    def is_address(self, type_name):
        return type_name.endswith("*") or type_name in self.h.addresses

    def field_type(self, type_name):
        if type_name in self.h.structs:
            return f"type({type_name})"
        if type_name in self.h.enum_types:
            return "integer(c_int)"
        if type_name in self.h.callbacks:
            return "type(c_funptr)"
        if self.is_address(type_name):
            return "type(c_ptr)"
        if type_name == "char":
            return "character(kind=c_char)"
        return SCALARS[type_name][0]

    def default(self, struct, type_name, text, parameter):
        """A field's value in the _INIT macro, in Fortran; "" where the type's own default says it."""
        if type_name in self.h.structs:
            call = re.fullmatch(r"(\w+_INIT)(?:\((\w+)\))?", text)
            if not call or call[1] != type_name.upper() + "_INIT":
                fail(f"{struct}: cannot read the initialiser {text}")
            return f" = {type_name}({call[2]})" if call[2] else ""
        if text == "NULL":
            return " = " + ("c_null_funptr" if type_name in self.h.callbacks else "c_null_ptr")
        if text == f"sizeof({struct})":
            return f" = {self.h.layout(struct)[1]}_c_size_t"
        if parameter and text == f"({parameter})":
            return " = EVO_NONE"
        if re.fullmatch(r"\{ 0(, 0)* \}", text):
            return " = c_null_char" if type_name == "char" else " = 0"
        if type_name in self.h.enum_types or (type_name in ("int", "unsigned") and not text.isdigit()):
            return " = " + text
        if re.fullmatch(r"[\d.e+-]+", text):
            return f" = {text}{SCALARS[type_name][1]}"
        return fail(f"{struct}: cannot read the initialiser {text}")

    def enum(self, doc, values):
        yield ""
        yield from comment_lines(doc, "    ")
        yield "    enum, bind(c)"
        for name, value, note in values:
            yield f"        enumerator :: {name} = {value}" + (f" !< {note}" if note else "")
        yield "    end enum"

    def struct(self, name):
        doc, fields = self.h.structs[name]
        if name.upper() + "_INIT" not in self.h.macros:
            fail(f"{name} has no {name.upper()}_INIT")
        parameter, text = self.h.macros[name.upper() + "_INIT"]
        values = split_initialiser(text)
        if len(values) != len(fields):
            fail(f"{name.upper()}_INIT has {len(values)} values for {len(fields)} components")
        yield ""
        yield from comment_lines(doc, "    ")
        yield f"    type, bind(c) :: {name}"
        for (type_name, field, count, note), value in zip(fields, values):
            array = f"({count})" if count else ""
            line = f"        {self.field_type(type_name)} :: {field}{array}"
            line += self.default(name, type_name, value, parameter)
            if note:
                yield from (f"        !> {text}" for text in textwrap.wrap(reversed_shapes(note), 108))
            yield line
        yield f"    end type {name}"
        bits = 8 * self.h.layout(name)[1]
        yield f"    integer, parameter, private :: {name[4:]}_is_as_in_c = 1 / merge(1, 0, storage_size({name}()) == {bits})"

    def argument(self, function, type_name, name):
        base = type_name.replace("const ", "").rstrip("* ")
        stars = type_name.count("*")
        if (function, name) in OPTIONAL:
            return f"type({base}), intent(in), optional :: {name}"
        if base == "char" and stars == 1:
            return f"character(kind=c_char), intent(in) :: {name}(*)"
        if base in self.h.structs and stars == 1:
            return f"type({base}), intent({'in' if type_name.startswith('const') else 'inout'}) :: {name}"
        if base == "void" or base in self.h.opaque:
            return f"type(c_ptr), {'value' if stars == 1 else 'intent(out)'} :: {name}"
        if stars > 1 or base not in {*SCALARS, *self.h.enum_types, *self.h.addresses}:
            fail(f"{function}: cannot translate the argument {type_name} {name}")
        return f"{self.field_type(base)}, {'value' if stars == 0 else 'intent(out)'} :: {name}"

    def procedure(self, doc, result, name, arguments):
        yield ""
        yield from comment_lines(doc, "        ")
        kind = "subroutine" if result == "void" else "function"
        yield from wrapped(f"        {kind} {name}({', '.join(a for _, a in arguments)}) bind(c)")
        yield "            import"
        for type_name, argument in arguments:
            yield "            " + self.argument(name, type_name, argument)
        if result != "void":
            yield f"            {self.field_type(result)} :: {name}"
        yield f"        end {kind} {name}"

    def lines(self):
        h = self.h
        version = [h.macros["EVO_VERSION_" + part][1] for part in ("MAJOR", "MINOR", "PATCH")]
        yield from HEAD.format(version=".".join(version)).split("\n")[:-1]
        yield ""
        for name, (parameter, text) in h.macros.items():
            if not parameter and text.isdigit():
                yield f"    integer, parameter :: {name} = {text}"
        for kind, which in h.order:
            yield from self.enum(*h.enums[which]) if kind == "enum" else self.struct(which)
        if h.callbacks:
            yield ""
            yield "    abstract interface"
            for name, (doc, result, arguments) in h.callbacks.items():
                # A line that comes in is a C string of unknown length.
                text = "\n".join(self.procedure(doc, result, name, arguments))
                yield from re.sub(r"character.* :: (\w+)\(\*\)", r"type(c_ptr), value :: \1", text).split("\n")
            yield "    end interface"
        yield ""
        yield "    interface"
        for function in h.functions:
            yield from self.procedure(*function)
        yield "    end interface"
        yield from TAIL.split("\n")[:-1]

    def text(self):
        text = "\n".join(self.lines()) + "\n"
        names = re.findall(r"(?:enumerator|parameter) :: (\w+)|bind\(c\) :: (\w+)|end (?:function|subroutine) (evo_\w+)", text)
        names = [name.lower() for group in names for name in group if name]
        if len(names) != len(set(names)):
            fail("names that Fortran cannot tell apart: " + str([n for n in set(names) if names.count(n) > 1]))
        for line in text.split("\n"):
            if len(line) > 132:
                fail("a line that Fortran would cut: " + line)
        return text


def c_assertions(headers):
    yield "#include <evoformer/evoformer.h>"
    for name, (_, fields) in headers.structs.items():
        offsets, size, _ = headers.layout(name)
        yield f'_Static_assert(sizeof({name}) == {size}, "size of {name}");'
        for (_, field, _, _), offset in zip(fields, offsets):
            yield f'_Static_assert(offsetof({name}, {field}) == {offset}, "{name}.{field}");'
    for _, values in headers.enums:
        for name, value, _ in values:
            yield f'_Static_assert({name} == {value}, "{name}");'
    for name in headers.enum_types:
        yield f'_Static_assert(sizeof({name}) == sizeof(int), "{name}");'


def main():
    options = sys.argv[2:]
    if len(sys.argv) < 2 or not (options in ([], ["--c"]) or (len(options) == 2 and options[0] == "--check")):
        sys.exit("usage: generate.py INCLUDE-DIR [--check FILE | --c]")
    headers = Headers(sys.argv[1])
    if options == ["--c"]:
        print("\n".join(c_assertions(headers)))
        return
    text = Module(headers).text()
    if not options:
        sys.stdout.write(text)
        return
    with open(options[1], encoding="utf-8") as file:
        old = file.read()
    if old != text:
        sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), text.splitlines(True), options[1], "generated"))
        fail(f"{options[1]} is not what the headers give; write it again")
    print(f"{len(headers.functions)} functions, {len(headers.structs)} structs, {len(headers.enums)} enums: up to date")


main()
