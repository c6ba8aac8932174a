"""What can go wrong and is worth a sentence of its own.

    ForensicsError
    ├── UsageError      the arguments make no sense; exit code 2
    ├── NoInputError    nothing readable was given; exit code 2
    └── GrammarError    a grammar of ours cannot be turned into patterns; a defect of the program

Any other exception that ends the program is a defect of it.
"""


class ForensicsError(Exception):
    """Base of every exception that the program raises on purpose."""


class UsageError(ForensicsError):
    """The arguments contradict one another or name nothing that exists."""


class NoInputError(ForensicsError):
    """No path could be read, or none of them holds anything the program knows."""


class GrammarError(ForensicsError):
    """A grammar asks for something a line pattern cannot express; names file and rule."""
