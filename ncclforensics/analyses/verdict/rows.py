"""Rows of frames as typed values: what the engine reads most."""

from __future__ import annotations

from typing import Any, NamedTuple

Row = dict[str, Any]
Owner = tuple[str, int | None]  # host and process that printed a line


class Rank(NamedTuple):
    """A rank of a job, or a process without one: a row of `rank`."""

    rank_id: int
    rank: int | None  # in the largest communicator of the job
    host: str
    pid: int | None
    cudadev: int | None
    busid: str | None
    source: int

    @property
    def owner(self) -> Owner:
        """Its host and process."""
        return self.host, self.pid


class Gap(NamedTuple):
    """A place at which the log of a rank lacks collectives, or has some twice: a row of `call_gap`."""

    key: str
    rank_id: int
    nth: int
    missing: int
    later: int
    is_lost: bool | None


class Timeout(NamedTuple):
    """What the watchdog of a rank reports of one process group: a row of `work`."""

    rank: int
    guid: str  # the group's name; empty where none is printed
    sequence: int | None  # of the work that timed out
    enqueued: int | None
    completed: int | None
    operation: str | None
    library: str | None  # NCCL, or what takes its place on other devices
    numel: int | None  # input elements
    members: int | None  # of its process group
    has_timed_out: bool  # this rank reports the time-out itself
    is_timeout: bool  # a line says that time ran out; others stand for an error or a time-out
    waited: int | None  # milliseconds, until time ran out
    has_error: bool  # its watchdog found an error of NCCL or CUDA
    first_rank: int | None  # whose time-out it relays
    source: int
    line: int

    @property
    def is_idle(self) -> bool:
        """Whether the rank had completed all that it had enqueued."""
        return self.completed is not None and self.enqueued is not None and self.completed >= self.enqueued

    @property
    def known_completed(self) -> int:
        """The last work that it completed: works of a group complete in order, up to the one that timed out."""
        if self.completed is not None:
            return self.completed
        return self.sequence - 1 if self.has_timed_out and self.sequence and self.guid else 0

    def place(self, rank_id: int | None) -> Row:
        """Return its line as a row, with the rank that it is about."""
        return {"rank_id": rank_id, "source": self.source, "line": self.line}


class Member(NamedTuple):
    """The membership of a rank in a communicator: a row of `member`."""

    job: int
    key: str
    rank_id: int
    rank: int | None  # in the communicator
    nranks: int
    is_inferred: bool
    is_complete: bool
    end: str | None
    end_pos: int | None
    created_pos: int
    host: str
    pid: int
    has_met: bool  # its lines show that its ranks exchanged data
    source: int
    line: int | None
    end_source: int | None
    end_line: int | None

    @property
    def place(self) -> Row:
        """The line of its creation, as a row with the rank."""
        return {"rank_id": self.rank_id, "source": self.source, "line": self.line}

    @property
    def place_of_end(self) -> Row:
        """The line of its end."""
        return {"rank_id": self.rank_id, "source": self.end_source, "line": self.end_line}


class FailureEvent(NamedTuple):
    """A line in which a process reports a failure: a row of `failure_event`."""

    rank_id: int | None  # None where one process drives several ranks
    host: str
    pid: int
    form: str
    kind: str
    named_rank_id: int | None  # of the rank that the line names
    rank: int | None
    other: int | None
    nranks: int | None
    nroots: int | None
    otherroots: int | None
    peer: str | None
    busid: int | None  # PCI address of a GPU
    result: int | None  # ncclResult_t that a caller returned
    unwound: str | None  # place of a caller that returned an error
    calling_thread: str | None
    is_of_call: bool  # returned because NCCL refused an argument of a call on a communicator
    at_exit: bool  # after the process began to destroy or abort its communicators
    source: int
    line: int
    pos: int

    @property
    def place(self) -> Row:
        """Its line, as a row with the rank."""
        return {"rank_id": self.rank_id, "source": self.source, "line": self.line}
