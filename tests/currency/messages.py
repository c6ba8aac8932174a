"""List every text that NCCL prints, with the releases that print it and its newest place in the sources.

    python -m tests.currency.messages SOURCES

SOURCES holds a bare clone, nccl.git. The result replaces ncclforensics/data/catalogue/messages.json. Releases whose
sources are not tagged yet are known by the lists of texts that their libraries hold (`message_texts`).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ncclforensics.data.message_catalogue import MESSAGES
from ncclforensics.data.versions import release
from tests.currency.library_texts import INFO, WARNING
from tests.currency.message_texts import SOURCES, known_texts, texts

VALUE = re.compile(r"%[-+ #0]*(?:\*|\d+)?(?:\.(?:\*|\d+))?(?:hh|h|ll|l|z|j|t)?[diouxXeEfFgGaAcspn%]")
TAG = re.compile(r"v(2\.[\d.]+)-\d$")


def main() -> None:
    """Write the list anew."""
    repository = Path(sys.argv[1]) / "nccl.git"
    tags = {match[1]: tag for tag in _git(repository, "tag").split() if (match := TAG.match(tag))}
    lists = [known_texts(level) for level in (WARNING, INFO)]
    versions = sorted({*tags, *(version for listed in lists for version in listed)}, key=release)
    found: dict[str, list[str]] = {}
    for version in versions:
        listed = [(text, "") for texts_of in lists for text in texts_of.get(version, [])]
        for text, place in _of_tag(repository, tags[version]) if version in tags else listed:
            first, _, source = found.get(text, [version, "", ""])
            found[text] = [first, version, f"{place} ({version})" if place else source]
    newest = max(map(release, tags))  # what a library lacks may be in it: macros write texts of their own
    rows = [
        json.dumps([VALUE.split(text.strip()), first, last if release(last) < newest else "", source])
        for text, (first, last, source) in sorted(found.items())
    ]
    MESSAGES.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")


def _of_tag(repository: Path, tag: str) -> Iterator[tuple[str, str]]:
    """Yield the texts that one release prints, with file and line."""
    places: dict[str, list[str]] = {}
    for row in _git(repository, "ls-tree", "-r", tag, "src").splitlines():
        entry, _, path = row.partition("\t")
        for text, line in _of_file(repository, entry.split()[2]) if path.endswith(SOURCES) else ():
            places.setdefault(text, []).append(f"{path}:{line}")
    for text, (place, *others) in places.items():
        yield text, f"{place} and {len(others)} more" if others else place


@cache
def _of_file(repository: Path, blob: str) -> list[tuple[str, int]]:
    """The texts of one file, of which most releases change nothing."""
    code = _git(repository, "cat-file", "blob", blob)
    return [found for level in (WARNING, INFO) for found in texts(code, level)]


def _git(repository: Path, *arguments: str) -> str:
    """Return what a command of git prints."""
    done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, check=True)
    return done.stdout.decode(errors="replace")


if __name__ == "__main__":
    main()
