"""Open a run: read its inputs, or take them from saved runs."""

from __future__ import annotations

from collections.abc import Iterable

from ncclforensics.archive.restore import expand, restore
from ncclforensics.frames.run import Run
from ncclforensics.frames.time_range import TimeRange
from ncclforensics.inputs.read_policy import ReadPolicy
from ncclforensics.inputs.sources import Source
from ncclforensics.parsing.load import Progress, load


def open_run(
    sources: Iterable[Source],
    policy: ReadPolicy | None = None,
    *,
    time_range: TimeRange | None = None,
    progress: Progress = lambda _: None,
) -> Run:
    """Read and parse the sources as far as the policy says; `time_range` keeps only what was printed in it.

    Inputs are numbered by name, with numbers in names compared as numbers (`rank2` before `rank10`): nothing depends on
    the order in which they were given. Raises SavedError.
    """
    sources = list(sources)
    inputs = sorted(expand(sources), key=lambda entry: _natural_order(entry[0].path))
    records = load([source for source, _ in inputs], policy or ReadPolicy(), progress)
    is_only_source = len(sources) == 1 and time_range is None
    saved = restore(records, [position for _, position in inputs], is_only_source=is_only_source)
    return Run(records, saved, time_range)


def _natural_order(name: str) -> list[tuple[bool, int, str]]:
    parts, digits = [], ""
    for character in name + "\0":
        if character.isascii() and character.isdigit():
            digits += character
            continue
        if digits:
            parts.append((False, int(digits), ""))
            digits = ""
        parts.append((True, 0, character))
    return parts
