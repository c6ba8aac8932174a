"""What a site may set: rules to run, the machines and delays that it expects, names of its own, words to redact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ncclforensics.data.thresholds import LATE_SECONDS, LONG_INIT


class ExpectedMachine(NamedTuple):
    """What every host of a run is expected to have; rules compare with what is not None."""

    gpus: int | None = None  # per host; a communicator with all GPUs of its hosts is compared with the other values
    nics: int | None = None  # ports per host that NCCL uses
    channels: int | None = None  # of a communicator with all GPUs of one host
    channels_between_hosts: int | None = None  # of a communicator with all GPUs of several hosts
    busbw: float | None = None  # GB/s that nccl-tests reaches for large sizes over rings, on one host with all its GPUs


class Thresholds(NamedTuple):
    """Thresholds that depend on the site; data/thresholds.py gives their sources."""

    late_seconds: float = LATE_SECONDS  # a rank that calls later than the others by more is a straggler
    long_init_seconds: float = LONG_INIT  # init of a communicator that takes longer is a warning, not a note


class Settings(NamedTuple):
    """All settings of a site. Without a configuration the defaults hold."""

    paths: tuple[str, ...] = ()  # what is read where a command is given no PATH
    rule_folders: tuple[str, ...] = ()  # folders with rules and line shapes of one's own
    select: tuple[str, ...] = ()  # rules and categories: commands that run all rules run only these
    ignore: tuple[str, ...] = ()  # rules and categories that they skip
    redact_words: tuple[str, ...] = ()  # words that `--redact` removes, too
    hosts: Mapping[str, tuple[str, ...]] = {}  # name of a machine -> patterns of its names
    racks: Mapping[str, tuple[str, ...]] = {}  # name of a rack -> patterns of names of hosts
    rails: Mapping[str, tuple[str, ...]] = {}  # name of a rail -> patterns of [host/]device
    machine: ExpectedMachine = ExpectedMachine()
    thresholds: Thresholds = Thresholds()
    files: tuple[str, ...] = ()  # the configuration files that these settings are from
