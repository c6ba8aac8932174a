"""How much of the inputs is read at once, and by how many threads."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from ncclforensics.inputs.lines import CHUNK

WINDOW = 64 << 10  # bytes
# What the windows of all files hold together, in bytes; where there are more files, each gets smaller windows.
WINDOWS = 2 * 2048 * WINDOW
# Bytes of files that are read whole, where these are few: windows of a log of many ranks show some of them.
WHOLE_FILES = 4 << 20
CALLS = 3_000_000  # of 0.6 GB of logs
CALLS_OF_HANG = 1_000_000  # of which a hang is decided by the last ones
SMALLEST_WINDOW = 16 << 10  # bytes; most often enough for the init of a rank
SAMPLE = 32 << 10  # bytes at each end by which formats are detected
MOST_THREADS = 8  # each holds a batch of lines in memory


class ReadPolicy(NamedTuple):
    """Sizes that decide how inputs are read and parsed; none of them changes what is found in bytes that were read."""

    full: bool = False  # read every byte instead of windows at both ends of each file
    window: int = WINDOW  # bytes first read at each end of a file
    small_file: int = 4 * WINDOW  # bytes; a file up to this size is read whole
    sample: int = SAMPLE  # bytes at each end by which the format of a file is detected
    chunk: int = CHUNK  # bytes read and parsed at once
    one_thread: int = 4 * CHUNK  # bytes; less than that is read faster by one thread than by several
    batch: int = 5 * CHUNK  # weight of rare lines parsed at once, to amortise regex compilation
    calls: int = CALLS  # of more, those at both ends of each process are kept, and the others counted
    kept: int = 32  # equal lines kept at each end of a flood; what lies between them is counted and dropped
    events: int = 1 << 16  # rows of a frame of events; of more, those that differ only in numbers are counted
    samples: int = 1 << 19  # rows of outputs of one tool; of more, those that were sampled often are thinned out
    threads: int = min(pl.thread_pool_size(), MOST_THREADS)
    small_frame: int = 10_000  # rows; smaller pieces of a frame are concatenated before anything is computed on them

    @classmethod
    def of_windows(cls, files: int) -> ReadPolicy:
        """The policy for so many files: the more there are, the less is read at first of each."""
        window = min(max(WINDOWS // (2 * max(files, 1)), SMALLEST_WINDOW), WINDOW)
        small_file = max(4 * window, WHOLE_FILES // max(files, 1))
        return cls(window=window, small_file=small_file, sample=window // 2, calls=CALLS_OF_HANG)
