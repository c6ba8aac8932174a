"""Open a run: read its inputs, or take them from saved runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from ncclforensics.archive.manifest import Saved
from ncclforensics.archive.restore import expand, restore
from ncclforensics.data.settings import Settings
from ncclforensics.formats import dialect
from ncclforensics.frames.run import Run
from ncclforensics.frames.source_order import arrange
from ncclforensics.frames.time_range import TimeRange
from ncclforensics.inputs.read_policy import ReadPolicy
from ncclforensics.inputs.sources import Source
from ncclforensics.parsing.concurrency import single_threaded
from ncclforensics.parsing.load import Progress, load


def open_run(
    sources: Iterable[Source],
    policy: ReadPolicy | None = None,
    *,
    time_range: TimeRange | None = None,
    settings: Settings | None = None,
    progress: Progress = lambda _: None,
) -> Run:
    """Read and parse the sources as far as the policy says; `time_range` keeps only what was printed in it.

    Inputs are numbered by name, with numbers in names compared as numbers (`rank2` before `rank10`), and the parts of a
    rotated log from the oldest to the newest: nothing depends on the order in which they were given. Copies are left
    out. Raises SavedError.
    """
    sources = list(sources)
    inputs = _in_order(expand(sources))
    policy = policy or ReadPolicy()
    # For few bytes a thread pool costs more than it saves: without it, an incident takes 15 % less of the processors.
    read = partial(load, [source for source, _ in inputs], policy, progress, time_range.filter if time_range else None)
    records = single_threaded(read) if sum(source.size for source in sources) < policy.chunk else read()
    is_only_source = len(sources) == 1 and time_range is None
    saved = restore(records, [position for _, position in inputs], is_only_source=is_only_source)
    return Run(records, saved, time_range, settings)


def _in_order(inputs: Sequence[tuple[Source, int]]) -> list[tuple[Source, int]]:
    """The inputs, each with its number in its saved run, in the order in which they are numbered."""
    by_name = sorted(inputs, key=lambda entry: _natural_order(entry[0].path))
    arranged = arrange([source for source, _ in by_name if not source.saved], dialect())
    of_run: dict[Saved | None, list[tuple[Source, int]]] = {}
    for source, position in inputs:  # a saved run has put its inputs in order already
        of_run.setdefault(source.saved, []).append((source, position))
    of_run[None] = [(source, 0) for source in arranged]
    remaining: dict[Saved | None, Iterator[tuple[Source, int]]] = {saved: iter(own) for saved, own in of_run.items()}
    return [next(remaining[source.saved]) for source, _ in by_name]


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
