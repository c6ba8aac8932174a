"""List messages of released NCCL and PyTorch libraries that no grammar knows; those of NCCL as stubs for a grammar.

    python -m tests.currency.unknown_strings WHEEL_OR_LIBRARY…

The format strings of a library stand for the lines it can print; NCCL's code gives their level. One is known if it
could have printed an example of a grammar, or if a pattern matches it with its conversions filled in. Where no level
shows, strings that look like no message are left out: then the list is a help for readers and not a proof.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from ncclforensics.formats.nccl import dialect
from ncclforensics.grammar import grammar_file
from ncclforensics.inputs import lines
from ncclforensics.parsing.matching import match
from tests.currency.library_texts import INFO, WARNING, contents, libraries
from tests.currency.message_texts import texts_of_library

CATCH_ALL = {"unknown", "warning", "plugin_warning", "c10d_note", "exception"}
SHORTEST = 14  # characters of a message
CONVERSION = re.compile(r"%[-+ #0]*[0-9*]*(?:\.[0-9*]+)?(?:hh|h|ll|l|z|j|t|L)?([diouxXeEfgGcspaA%])")
TEXT = re.compile(rb"[\t\n\x20-\x7e]{%d,400}\0" % SHORTEST)
WORD = re.compile(r"[A-Za-z]{2,}")
# PyTorch's libraries hold the strings of a whole framework; these words mark those of its process groups.
OF_PROCESS_GROUPS = re.compile(
    "NCCL|nccl|[Ww]atchdog|[Pp]rocess ?[Gg]roup|TCPStore|c10d|[Cc]ommunicator|Flight ?Recorder|monitored|[Hh]eartbeat"
)
OTHER = re.compile("INTERNAL ASSERT|doca|DOCA|umem|UMEM|__torch__|symmetric")  # checks inside, and other libraries
FRAGMENT = 16  # characters that a part of a message shares with an example
# What the conversions of one message are filled with: texts, and numbers.
FILLINGS = (
    ("eth0", "3"),
    ("10.0.4.13<45210>", "3"),
    ("Connection refused", "3"),
    ("AllReduce", "1024"),
    ("NET/IB", "3"),
    ("/etc/file", "3"),
    ("2.30.7", "3"),
)
WARNING_PREFIX = "gpu-a012:41887:42107 [3] init.cc:100 NCCL WARN "
NOTE_PREFIX = "gpu-a012:41887:42107 [3] NCCL INFO "
NCCL_PREFIXES = (
    NOTE_PREFIX,
    WARNING_PREFIX,
    "gpu-a012:41887 NCCL DIAG ",
    "",
)
TORCH_PREFIXES = (
    "[rank3]:[E813 12:25:30.948355712 ProcessGroupNCCL.cpp:633] [PG ID 0 PG GUID 0 Rank 3] ",
    "RuntimeError: ",
)


def main() -> None:
    """Print the unknown messages of every library named on the command line, one a line, by their level if it shows."""
    listed: set[str] = set()  # wheels for several releases of CUDA hold the same texts
    for name in sys.argv[1:]:
        for library, data in libraries(Path(name)):
            for level, prefixes, texts in _by_level(library, data):
                found = sorted({*texts} - listed)
                listed.update(found)
                unknown = list(unknown_messages(found, is_fragmentary="torch" in library, prefixes=prefixes))
                print(f"# {library}: {len(unknown)} of {len(found)} messages{level} are unknown")
                for text in unknown:
                    print("\n".join(stub(text, prefixes[0])) if "torch" not in library else repr(text)[1:-1])


def _by_level(library: str, data: bytes) -> Iterator[tuple[str, tuple[str, ...], list[str]]]:
    """Level in words, prefixes of such lines, and the texts of a library; all texts at once if no level shows."""
    of_levels = [
        (f" of level {level}", (prefix,), [*texts_of_library(data, level)])
        for level, prefix in ((WARNING, WARNING_PREFIX), (INFO, NOTE_PREFIX))
    ]
    if any(texts for _, _, texts in of_levels):
        yield from of_levels
        return
    prefixes = TORCH_PREFIXES if "torch" in library else NCCL_PREFIXES
    yield "", prefixes, [text for text in strings(data) if is_message(text, library)]


def strings(library: bytes) -> Iterator[str]:
    """The printable strings, each ended by a zero byte, in the read-only data of a 64-bit ELF library."""
    for _, content in contents(library, ".rodata"):
        for found in TEXT.finditer(content):
            yield found.group()[:-1].decode("ascii")


def is_message(text: str, library: str) -> bool:
    """Whether a string reads like a message: three words and a blank, and in PyTorch a word of its process groups."""
    if len(WORD.findall(CONVERSION.sub(" ", text))) < 3 or " " not in text.strip() or "::" in text:
        return False
    return not OTHER.search(text) and ("torch" not in library or bool(OF_PROCESS_GROUPS.search(text)))


def unknown_messages(
    messages: Iterable[str], *, is_fragmentary: bool, prefixes: tuple[str, ...] = NCCL_PREFIXES
) -> Iterator[str]:
    """The messages that no grammar knows, behind any of these prefixes.

    `is_fragmentary`: they are parts that a stream of C++ puts together.
    """
    wanted = [text.strip() for text in messages]
    examples = "\n".join(example for shape in dialect().shapes for example in shape.examples)
    if is_fragmentary:
        literals = _literals()
        left = [text for text in wanted if text not in examples and not any(text in literal for literal in literals)]
    else:
        lines = examples.split("\n")
        left = [text for text in wanted if not _is_printed_in(text, lines)]
    known = _matching(left, prefixes)
    yield from (text for text in left if text not in known)


def stub(message: str, prefix: str = WARNING_PREFIX) -> Iterator[str]:
    """The lines of a grammar for a message of NCCL: an example, its meaning to be filled in, and its first words.

    >>> print("\\n".join(stub("Failed to find rank %d in comm %p")))
    //> gpu-a012:41887:42107 [3] init.cc:100 NCCL WARN Failed to find rank 3 in comm 0x7f1204001060
    //! KIND CATEGORY FORM: WHAT IT MEANS -> WHAT TO DO
        | _note "Failed to find rank " MESSAGE -> FORM
    """
    begin = CONVERSION.split(message.split("\n")[0])[0].replace("\\", "\\\\").replace('"', '\\"')
    yield f"//> {prefix}{_filled(message, *FILLINGS[0])}"
    yield "//! KIND CATEGORY FORM: WHAT IT MEANS -> WHAT TO DO"
    literal = f'"{begin}" ' if begin else ""
    yield f"    | _note {literal}MESSAGE -> FORM"


def _is_printed_in(message: str, lines: Iterable[str]) -> bool:
    """Whether one of the lines is what a format string prints, after a prefix."""
    parts = CONVERSION.split(message.split("\n")[0])[::2]
    regex = re.compile(r"(?:^|NCCL [A-Z]+ |: )" + ".*?".join(map(re.escape, parts)) + r" *(?: \[Async thread\])?$")
    longest = max(parts, key=len)
    return any(longest in line and regex.search(line) for line in lines)


def _literals() -> set[str]:
    """The literal parts of all patterns that are long enough to know a message by."""
    pieces = [
        name
        for grammar in ("pytorch", "c10d", "job")
        for alternatives in grammar_file.load(grammar).pieces.values()
        for alternative in alternatives
        for _, name in alternative
    ]
    return {name[1:-1] for name in pieces if name.startswith('"') and len(name) >= FRAGMENT}


def _matching(messages: list[str], prefixes: tuple[str, ...]) -> set[str]:
    """The messages that some pattern other than a catch-all matches, filled in."""
    filled = [
        (text, prefix + _filled(text, *values)) for text in messages for values in FILLINGS for prefix in prefixes
    ]
    rows = lines.cleaned(lines.block("\n".join(line for _, line in filled).encode() + b"\n", 1))
    frames = match(rows, dialect()).frames
    numbers = {
        int(number)
        for frame, tables in frames.items()
        if frame not in CATCH_ALL
        for table in tables
        for number in table["line"]
    }
    return {filled[number - 1][0] for number in numbers}


def _filled(message: str, text: str, number: str) -> str:
    """The first line of a format string, with its conversions replaced."""
    values = {"s": text, "p": "0x7f1204001060", "x": "1f", "X": "1F", "f": "1.5", "g": "1.5", "e": "1.5", "%": "%"}
    return CONVERSION.sub(lambda found: values.get(found.group(1), number), message.split("\n")[0])


if __name__ == "__main__":
    main()
