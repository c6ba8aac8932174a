"""List every variable that NCCL, RCCL, aws-ofi-nccl and PyTorch's process groups read, with releases and defaults.

    python -m tests.currency.variables SOURCES WHEELS

SOURCES holds bare clones: nccl.git, rccl.git, aws-ofi-nccl.git. WHEELS keeps what is downloaded: the libraries of
releases of NCCL whose sources are not tagged yet, and PyTorch's headers. The result replaces
ncclforensics/data/catalogue/read.json.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ncclforensics.data.variable_catalogue import READ
from ncclforensics.data.versions import release
from tests.currency.library_texts import contents, libraries

UNTAGGED = ("2.31.2", "2.32.3")  # releases of NCCL in the registry whose sources are not public yet
TORCH = (
    "2.0.1", "2.1.2", "2.2.2", "2.3.1", "2.4.1", "2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0",
    "2.12.1", "2.13.0", "2.14.1",
)  # fmt: skip
# Look like variables of the environment, and are read when NCCL is built, or are names of constants.
NO_VARIABLES = {
    "NCCL_USE_CMAKE", "NCCL_GIN_CONNECTION_RAIL", "NCCL_COMM_PROPERTIES_INITIALIZER",
    "NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER",
}  # fmt: skip
INSPECTOR = ["plugins/profiler/inspector", "ext-profiler/inspector"]
READING = r'NCCL_PARAM[A-Z_]*\(|RCCL_PARAM\(|"(NCCL|RCCL|OFI_NCCL)_[A-Z0-9_]+"'
NAMED = re.compile(r'"((?:NCCL|RCCL|OFI_NCCL)_[A-Z0-9_]+)"')
DEFINED = re.compile(r"DEFINE_NCCL_PARAM\(\w+, [\w ]+\*?, (NCCL_\w+),(?: (.*?),(?: |$))?")
PARAMETER = re.compile(r'\b(NCCL|RCCL)_PARAM\(\s*\w+\s*,\s*"(\w+)",\s*(.*)$')
OFI = re.compile(r'OFI_NCCL_PARAM[A-Z_]*\([^"]*"(\w+)"(?:,\s*(.*))?$')
OF_TORCH = re.compile(r'"((?:TORCH_(?:NCCL|FR)|NCCL)_[A-Z0-9_]+)"')
KINDS = ("cc", "cu", "cpp", "c", "h", "hpp", "in")  # of source files
NUMBER = re.compile(r"-?\d+|unset")
UNSET = {"NCCL_CONFIG_UNDEF_INT", "nullptr", "NULL", '""'}
NAME_ENDED = re.compile(rb"(NCCL_[A-Z0-9_]+)\0")
UNDEFINED = -(1 << 31)  # NCCL_CONFIG_UNDEF_INT
# x86-64: the default into %esi or %rsi, `lea name(%rip), %rdi`, and a call of or jump to ncclLoadParam.
LOAD_ADDRESS = re.compile(rb"[\x48\x4c]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](....)", re.DOTALL)  # lea text(%rip)
LOAD_PARAM = re.compile(
    rb"(?:\xbe(....)|(\x31\xf6)|\x48\xc7\xc6(....)|\x48\xbe(........))\x48\x8d\x3d(....)[\xe8\xe9]", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Reading:
    """That one release reads a variable: by default as what, and where."""

    default: str
    place: str


Readings = dict[str, Reading]  # by name of the variable


def main() -> None:
    """Write the catalogue's generated part anew."""
    sources, wheels = Path(sys.argv[1]), Path(sys.argv[2])
    nccl = dict(_tagged(sources / "nccl.git", r"v2\.[\d.]+-\d$", ["src"]))
    nccl |= {version: of_library(_wheel(wheels, "nvidia-nccl-cu13", version)) for version in UNTAGGED}
    inspector = dict(_tagged(sources / "nccl.git", r"v2\.[\d.]+-1$", INSPECTOR))
    rccl = dict(_tagged(sources / "rccl.git", r"rocm-\d[\d.]+$", ["src"]))
    ofi = dict(_tagged(sources / "aws-ofi-nccl.git", r"v\d[\d.]+(-aws)?$", ["include", "src"]))
    torch = {version: of_headers(_wheel(wheels, "torch", version)) for version in TORCH}
    lines: list[str] = []
    newest = {}
    names: set[str] = set()
    for component, by_release in {
        "NCCL": nccl, "NCCL inspector": inspector, "RCCL": rccl, "aws-ofi-nccl": ofi, "PyTorch": torch
    }.items():  # fmt: skip
        ordered = dict(sorted(by_release.items(), key=lambda item: release(item[0])))
        filled = [version for version, readings in ordered.items() if readings]
        newest[component] = [filled[0], filled[-1]]
        for name, row in sorted(rows(ordered).items()):
            if name not in names:
                lines.append(f'  "{name}": {json.dumps({"component": component, **row})}')
        names |= {name for readings in by_release.values() for name in readings}
    head = f'{{"releases": {json.dumps(newest)},\n"variables": {{\n'
    READ.write_text(head + ",\n".join(sorted(lines)) + "\n}}\n", encoding="utf-8")


def rows(by_release: Mapping[str, Readings]) -> dict[str, dict[str, object]]:
    """Return per variable the first and last release, every default with its first release, and the newest place.

    `last` is empty where the newest release reads it.
    """
    order = list(by_release)
    found: dict[str, dict[str, object]] = {}
    for name in {name for readings in by_release.values() for name in readings}:
        reading = [version for version in order if name in by_release[version]]
        defaults: list[list[str]] = []
        for version in reading:
            read = by_release[version][name]
            if read.default and not (defaults and _names(defaults[-1], read)):
                defaults.append([version, read.default])
        places = [f"{by_release[version][name].place} ({version})" for version in reading]
        of_sources = [place for place in places if not place.startswith("lib")]
        found[name] = {
            "first": reading[0],
            "last": "" if reading[-1] == order[-1] else reading[-1],
            "defaults": defaults,
            "source": (of_sources or places)[-1],
        }
    return found


def _names(default: list[str], newer: Reading) -> bool:
    """Whether a newer release reads the same default. A library shows the number behind the name of a constant."""
    if newer.place.startswith("lib") and not NUMBER.fullmatch(default[1]):
        default[1] = f"{default[1].partition(' = ')[0]} = {newer.default}"
        return True
    return newer.default == default[1].partition(" = ")[0]


def _tagged(repository: Path, tags: str, folders: list[str]) -> Iterator[tuple[str, Readings]]:
    """Yield every released version of a repository, and what it reads."""
    for tag in _git(repository, "tag"):
        if re.match(tags, tag) and (version := re.sub(r"^v|^rocm-|-\d$|-aws$", "", tag)):
            yield version, of_tag(repository, tag, folders)


def of_tag(repository: Path, tag: str, folders: list[str]) -> Readings:
    """Return what the sources of one tag read."""
    found: Readings = {}
    kinds = [
        f":(glob){folder}/**/*.{kind}" for folder in folders for kind in ("cc", "cu", "cpp", "c", "h", "hpp", "in")
    ]
    for line in _git(repository, "grep", "-nE", READING, tag, "--", *kinds):
        _, place, number, text = line.split(":", 3)
        for name, default in of_line(text):
            if name not in NO_VARIABLES and (name not in found or (default and not found[name].default)):
                found[name] = Reading(default, f"{place}:{number}")
    return found


def of_line(text: str) -> Iterator[tuple[str, str]]:
    """Yield the variables that one line of C++ reads, each with its default, or an empty string.

    >>> list(of_line('NCCL_PARAM(SymCeThreshold, "SYM_CE_THRESHOLD", 8 * 1024 * 1024);'))
    [('NCCL_SYM_CE_THRESHOLD', '8388608')]
    >>> list(of_line('  if (strcmp(getenv("NCCL_ALGO"), "Ring") == 0)'))
    [('NCCL_ALGO', '')]
    """
    code = re.sub(r"/\*.*?\*/|//.*", "", text)
    if code.lstrip().startswith(("#define", "*")):
        return
    if parameter := PARAMETER.search(code):
        yield f"{parameter[1]}_{parameter[2]}", value(parameter[3])
    elif defined := DEFINED.search(code):
        yield defined[1], value(defined[2] or "")
    elif ofi := OFI.search(code):
        yield f"OFI_NCCL_{ofi[1]}", value(ofi[2] or "")
    else:
        yield from ((name, "") for name in NAMED.findall(code))


def value(default: str) -> str:
    """Return a default as a number where it is a constant expression, else as it is written.

    >>> value("1LL << 30);"), value("NCCL_CONFIG_UNDEF_INT)"), value("PROTOCOL::SENDRECV"), value("(1 << 17))")
    ('1073741824', 'unset', 'SENDRECV', '131072')
    """
    text = default.strip().rstrip(";,")
    text = text[:-1] if text.count(")") > text.count("(") else text
    if text in UNSET:
        return "unset"
    number = re.sub(r"(?<=\d)[uUlL]+", "", text)
    if re.fullmatch(r"[-\d\s()*+<x]+[\d)]", number):
        return str(_constant(ast.parse(number.strip(), mode="eval").body))
    return text.rpartition("::")[2]


def _constant(node: ast.expr) -> int:
    """Compute an expression of integers."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_constant(operand)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _constant(left) * _constant(right)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _constant(left) + _constant(right)
        case ast.BinOp(left=left, op=ast.LShift(), right=right):
            return _constant(left) << _constant(right)
        case _:
            raise ValueError(ast.unparse(node))


def of_library(wheel: Path) -> Readings:
    """Return the variables whose names are in a library of NCCL for x86-64, with the defaults that its code passes on.

    `ncclLoadParam(name, default, …)` takes its name in %rdi and the default in %rsi. What stands in front of a name
    need not end with a zero, so names are also taken from where the code points to.
    """
    ((file, library),) = libraries(wheel)
    texts = b"".join(data for _, data in contents(library, ".rodata"))
    names = {name.decode(): "" for name in re.findall(rb"(?<=\0)NCCL_[A-Z0-9_]+(?=\0)", texts)}
    start, code = next(iter(contents(library, ".text")))
    for pointer in LOAD_ADDRESS.finditer(code):
        if name := NAME_ENDED.match(library, start + pointer.end() + _signed(pointer[1])):
            names.setdefault(name[1].decode(), "")
    for call in LOAD_PARAM.finditer(code):
        if name := NAME_ENDED.match(library, start + call.end() - 1 + _signed(call[5])):
            constant = _signed(call[1] or call[3] or call[4] or b"\0")
            names[name[1].decode()] = "unset" if constant == UNDEFINED else str(constant)
    return {name: Reading(default, file) for name, default in names.items() if name not in NO_VARIABLES}


def _signed(number: bytes) -> int:
    return int.from_bytes(number, "little", signed=True)


def of_headers(wheel: Path) -> Readings:
    """Return the variables that the headers of PyTorch's process groups name."""
    found: Readings = {}
    with zipfile.ZipFile(wheel) as archive:
        for path in sorted(archive.namelist()):
            if "/csrc/distributed/c10d/" in path and path.endswith(".hpp"):
                for number, line in enumerate(archive.read(path).decode().splitlines(), 1):
                    for name in OF_TORCH.findall(line):
                        found.setdefault(name, Reading("", f"{path.partition('include/')[2]}:{number}"))
    return found


def _wheel(folder: Path, package: str, version: str) -> Path:
    """Return a released wheel, downloaded where it is not there yet. All platforms have the same headers."""
    platform = "macosx_15_0_arm64" if package == "torch" else "manylinux_2_27_x86_64"
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    if not list(folder.glob(pattern)):
        python = ["--python-version", "3.11" if release(version) < (2, 10) else "3.12"] if package == "torch" else []
        subprocess.run(
            [
                sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest",
                str(folder), "--platform", platform, "--platform", "manylinux_2_18_x86_64", *python,
                f"{package}=={version}",
            ],
            check=True,
        )  # fmt: skip
    return next(folder.glob(pattern))


def _git(repository: Path, *arguments: str) -> Iterable[str]:
    """Return the lines that a command of git prints; `git grep` without a match returns 1."""
    done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, check=False)
    return done.stdout.decode(errors="replace").splitlines()


if __name__ == "__main__":
    main()
