"""What rules and reports need of a run, be it redacted or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, Protocol, cast

import polars as pl

from ncclforensics.data.settings import Settings
from ncclforensics.errors import BrokenFrameError, Defect, is_own
from ncclforensics.grammar.dialect import Dialect
from ncclforensics.inputs.windows import InputReader


class Frames(Protocol):
    """The frames of one run by name, and the inputs they were made of."""

    @property
    def dialect(self) -> Dialect:
        """Describes the parsed frames."""

    @property
    def inputs(self) -> list[InputReader]:
        """Every input, by number: the column `source` of frames."""

    @property
    def hashes(self) -> dict[int, str]:
        """Number of an input -> SHA-256 of its bytes, where a saved run holds it."""

    @property
    def settings(self) -> Settings:
        """What the site's configuration says; the frames `expected_machine` and `threshold` hold what rules read."""

    @property
    def tally(self) -> pl.DataFrame:
        """Lines read of every input, by kind: columns `source` and `parser.COUNTS`."""

    @property
    def kinds(self) -> dict[int, str]:
        """Number of an input -> the contract's `inputs[].kind`, of inputs with any line of a known format."""

    @property
    def defects(self) -> list[Defect]:
        """What failed so far. A rule that fails is added here."""

    @property
    def broken(self) -> set[str]:
        """Frames that are empty because an analysis failed."""

    def __getitem__(self, name: str) -> pl.DataFrame:
        """The frame of this name. Raises KeyError if there is none."""

    def has(self, name: str) -> bool:
        """Whether a frame has rows; does not compute a parsed frame to find out."""

    def quote(self, wanted: Iterable[tuple[int, int]]) -> dict[tuple[int, int], tuple[int, str]]:
        """Read lines a second time: (source, line) -> (line numbered from the start, text)."""

    def whole_text(self, source: int, line: int) -> str:
        """The text of a line with the next ones that it goes on in; empty where it stands alone, or in a saved run."""


def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the parameters. `inspect.signature` takes 50 times as long, for hundreds of functions a run."""
    code = cast(FunctionType, function).__code__
    return code.co_varnames[: code.co_argcount]


class Registered(Protocol):
    """A rule or an analysis."""

    @property
    def of(self) -> tuple[str, ...]:
        """If these frames are all empty, it finds nothing."""

    @property
    def function(self) -> Callable[..., Any]:
        """Its function, which takes frames."""


def call(frames: Frames, registered: Registered) -> Any:
    """Call a rule or an analysis; None, without importing its module, if the frames of `of` are all empty.

    Raises BrokenFrameError if a frame that it needs is missing because an analysis failed.
    """
    if not has_rows(frames, registered) and not frames.broken & set(registered.of):
        return None
    return call_with(frames, registered.function, registered.of)


def has_rows(frames: Frames, registered: Registered) -> bool:
    """Whether a frame of `of` has rows, or a rule or an analysis names none."""
    return not registered.of or any(map(frames.has, registered.of))


def call_with(frames: Frames, function: Callable[..., Any], of: tuple[str, ...] = ()) -> Any:
    """Call a function with the frames that its parameters name.

    Raises BrokenFrameError if one of them, or of `of`, is missing because an analysis failed.
    """
    arguments = {name: frames[name] for name in parameters(function)}
    if is_own(function.__module__):  # which may replace columns in place
        arguments = {name: frame.clone() for name, frame in arguments.items()}
    if broken := frames.broken & {*arguments, *of}:
        raise BrokenFrameError(f"no frame {', '.join(sorted(broken))}: its analysis failed")
    return function(**arguments)
