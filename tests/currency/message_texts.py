"""List the texts of NCCL's warnings, or of its notes, from its sources or a library, as format strings.

    python -m tests.currency.message_texts warning 2.30.7 SOURCES > LIST

`SOURCES` is the folder `src` of a release, or, from 2.31 on, its wheel or library. `warning_texts.txt` and
`info_texts.txt` hold the lists of the newest three minor releases, each text once: the releases that print it, a tab,
and the text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.currency.library_texts import INFO, WARNING, libraries, messages

# A call with a literal text, which macros put together of strings, names and the conversions of <inttypes.h>.
TEXT = r'((?:"(?:[^"\\]|\\.)*"|[A-Za-z_]\w*|\\?\s)+)[,)]'
CALLS = {
    WARNING: re.compile(rf"\b(?:WARN|ATTN) ?\(\s*{TEXT}"),
    INFO: re.compile(rf"\bINFO ?\(\s*[\w| ()]+,\s*{TEXT}"),
}
PART = re.compile(r'"((?:[^"\\]|\\.)*)"|(PRI\w+)|[A-Za-z_]\w*')
SOURCES = (".cc", ".h", ".cu")
LETTERS = re.compile(r"(?<!%)[A-Za-z]{2}")


def main() -> None:
    """Print the texts of one release."""
    level, release, folder = sys.argv[1:]
    path = Path(folder)
    if path.is_dir():
        files = (file for file in path.rglob("*.*") if file.name.endswith(SOURCES))
        found = {text for file in files for text, _ in texts(file.read_text("utf-8", errors="replace"), level)}
    else:
        found = {text for _, library in libraries(path) for text in texts_of_library(library, level)}
    for text in sorted(found):
        print(release, text, sep="\t")


def texts(code: str, level: str) -> Iterator[tuple[str, int]]:
    """The first lines of the messages of one level that one file prints, each with the number of its line."""
    for call in CALLS[level].finditer(code):
        parts = [
            found.group(1) if found.group(1) is not None else "ld" if found.group(2) else "%s"
            for found in PART.finditer(call.group(1))
        ]
        text = "".join(parts).partition("\\n")[0].replace('\\"', '"')
        if '"' in call.group(1) and LETTERS.search(text):
            yield text, code.count("\n", 0, call.start()) + 1


def texts_of_library(library: bytes, level: str) -> Iterator[str]:
    """The first lines of the messages of one level that a library prints."""
    for found, message in messages(library):
        text = message.partition("\n")[0]
        if found == level and LETTERS.search(text):
            yield text


def known_texts(level: str) -> dict[str, list[str]]:
    """The texts of the committed list of a level, by release."""
    found: dict[str, list[str]] = {}
    for line in Path(__file__).with_name(f"{level}_texts.txt").read_text(encoding="utf-8").splitlines():
        releases, _, text = line.partition("\t")
        for release in releases.split():
            found.setdefault(release, []).append(text)
    return found


if __name__ == "__main__":
    main()
