"""List the texts of NCCL's warnings, from its sources, as format strings.

    python -m tests.currency.warning_texts 2.30.7 SOURCES > LIST

`SOURCES` is the folder `src` of a release. `warning_texts.txt` holds the lists of several releases, each text once:
the releases that print it, a tab, and the text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

LIST = Path(__file__).with_suffix(".txt")
# A call with a literal text, which macros put together of strings, names and the conversions of <inttypes.h>.
CALL = re.compile(r'\b(?:WARN|ATTN) ?\(\s*((?:"(?:[^"\\]|\\.)*"|[A-Za-z_]\w*|\\?\s)+)[,)]')
PART = re.compile(r'"((?:[^"\\]|\\.)*)"|(PRI\w+)|[A-Za-z_]\w*')
LETTERS = re.compile(r"(?<!%)[A-Za-z]{2}")


def main() -> None:
    """Print the texts of one release."""
    release, folder = sys.argv[1:]
    for text in sorted({text for path in sorted(Path(folder).rglob("*.*")) for text in texts(path)}):
        print(release, text, sep="\t")


def texts(path: Path) -> Iterator[str]:
    """The first lines of the warnings that one file prints."""
    if path.suffix not in (".cc", ".h", ".cu"):
        return
    for call in CALL.finditer(path.read_text(encoding="utf-8", errors="replace")):
        parts = [
            found.group(1) if found.group(1) is not None else "ld" if found.group(2) else "%s"
            for found in PART.finditer(call.group(1))
        ]
        text = "".join(parts).partition("\\n")[0].replace('\\"', '"')
        if '"' in call.group(1) and LETTERS.search(text):
            yield text


def known_texts() -> dict[str, list[str]]:
    """The texts of the committed list, by release."""
    found: dict[str, list[str]] = {}
    for line in LIST.read_text(encoding="utf-8").splitlines():
        releases, _, text = line.partition("\t")
        for release in releases.split():
            found.setdefault(release, []).append(text)
    return found


if __name__ == "__main__":
    main()
