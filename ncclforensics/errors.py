"""What can go wrong and is worth a sentence of its own.

    ForensicsError
    ├── UsageError      the arguments make no sense; exit code 2
    ├── NoInputError    nothing readable was given; exit code 2
    ├── GrammarError    a grammar of ours cannot be turned into patterns; exit code 4
    └── BrokenFrameError    a frame is missing because the analysis that computes it failed

Any other exception is a defect of the program. One in a rule, an analysis or the parsing of a line costs only what
depends on it and is kept as a `Defect`; one that ends the program gives exit code 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class ForensicsError(Exception):
    """Base of every exception that the program raises on purpose."""


class UsageError(ForensicsError):
    """The arguments contradict one another or name nothing that exists."""


class NoInputError(ForensicsError):
    """No path could be read, or none of them holds anything the program knows."""


class GrammarError(ForensicsError):
    """A grammar asks for something a line pattern cannot express; names file and rule."""


class BrokenFrameError(ForensicsError):
    """A frame is missing because the analysis that computes it failed."""


class Terminated(BaseException):
    """A signal ended the program; `code` is its exit code. No SystemExit, which a rule of a user's own may raise."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def place_of(function: Callable[..., Any]) -> str:
    """The file and the line of a function's definition, as a message names them."""
    return f"{function.__code__.co_filename}, line {function.__code__.co_firstlineno}"


def is_own(module: str) -> bool:
    """Whether the rules and analyses of a module are a user's own, and not the program's."""
    return module.partition(".")[0] != __name__.partition(".")[0]


def own_place(function: Callable[..., Any], error: BaseException) -> str:
    """The file and the line at which a user's own rule or analysis failed; empty for a function of the program."""
    if not is_own(function.__module__):
        return ""
    from traceback import extract_tb

    file = function.__code__.co_filename
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == file]
    return f"{file}, line {lines[-1]}" if lines else place_of(function)


class Defect(NamedTuple):
    """A part of the program that failed, and what the exception was."""

    part: str  # "the rule gdr-missing", "the analysis wait", "reading node0.log"
    error: str  # "KeyError: 'host'"
    trace: str  # the lines of Python's traceback
    is_of_input: bool = False  # it stands among the problems of an input, too
    own_place: str = ""  # of a user's own rule or analysis: the file and the line

    @classmethod
    def of(cls, part: str, error: BaseException, *, is_of_input: bool = False, own_place: str = "") -> Defect:
        """Return the defect that an exception shows."""
        from traceback import format_exception  # takes 5 ms, and nothing needs it where all is well

        message = f"{type(error).__name__}: {error}"
        return cls(part, message, "".join(format_exception(error)), is_of_input, own_place)

    def __str__(self) -> str:
        if self.own_place:
            return f"{self.own_place}: {self.part} failed ({self.error}); what depends on it is missing"
        return f"the program failed in {self.part} ({self.error}); what depends on it is missing"
