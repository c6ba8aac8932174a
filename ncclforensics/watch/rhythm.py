"""Learn from the pauses between calls how long a job, or one log, may go without a call."""

from __future__ import annotations

from dataclasses import dataclass

from ncclforensics.report.earlier_look import SHORTEST

LEARNT = 10  # moments with calls, before which nothing is known of a rhythm
FACTOR = 2.0  # times the longest pause
# PyTorch ends a collective after this time by default (torch.distributed.constants.default_pg_nccl_timeout): a healthy
# job hardly has pauses in which ranks wait for longer.
TIMEOUT = 600.0  # seconds
# A pause that has not come yet, such as the first checkpoint, may take as long as the job was watched, but at most half
# of that: when PyTorch has ended the ranks, their stacks can no longer be taken.
MOST_UNSEEN = TIMEOUT / 2
FIRST_LOOK = 2 / 3  # of the time that is allowed
LOOKS = 4  # at the first look's time, at the time allowed, at twice of it, and at four times of it or TIMEOUT


@dataclass(slots=True)
class Rhythm:
    """When calls were made, in seconds; all memory that one log needs."""

    last: float  # the last moment with calls
    longest_known: float | None = None  # pause in seconds that the user knows to be healthy
    first: float | None = None  # the first moment with calls since the logs are watched
    moments: int = 0
    longest: float = 0.0  # pause so far, in seconds
    looks: int = 0  # taken since the last call
    looked: float = 0.0  # when the last of these was taken

    def note_calls(self, now: float) -> None:
        """Note that calls were made."""
        if self.first is None:
            self.first = now
        else:
            self.longest = max(self.longest, now - self.last)
        self.last, self.moments, self.looks = now, self.moments + 1, 0

    def note_look(self, now: float) -> None:
        """Note that the logs were looked at."""
        self.looks, self.looked = self.looks + 1, now

    @property
    def is_learnt(self) -> bool:
        """Whether calls were seen often enough to know a rhythm."""
        return self.moments >= LEARNT

    @property
    def allowed(self) -> float:
        """Seconds without a call that are no sign of a hang."""
        if self.longest_known is not None:
            unseen = self.longest_known
        elif self.is_learnt and self.first is not None:
            unseen = min(self.last - self.first, MOST_UNSEEN)
        else:
            unseen = TIMEOUT
        return max(FACTOR * self.longest, unseen)

    def silence(self, now: float) -> float:
        """Seconds since the last call."""
        return now - self.last

    def is_silent(self, now: float) -> bool:
        """Whether no call was made for longer than is allowed."""
        return self.silence(now) >= self.allowed

    def is_look_due(self, now: float) -> bool:
        """Whether to look at the logs again."""
        if self.looks == 0:
            return self.silence(now) >= FIRST_LOOK * self.allowed
        silence = self.allowed * 2 ** (self.looks - 1)
        if self.looks == LOOKS - 1 and self.longest_known is None:
            silence = max(silence, TIMEOUT)
        between = min((1 - FIRST_LOOK) * self.allowed, SHORTEST)
        return self.looks < LOOKS and now >= max(self.last + silence, self.looked + between)
