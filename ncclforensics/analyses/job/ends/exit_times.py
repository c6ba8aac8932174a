"""Compare when and where processes ended, by the clocks of their launchers."""

from __future__ import annotations

from datetime import datetime, timedelta

from ncclforensics.analyses.job.ends.exit_reports import ExitReport
from ncclforensics.data.processes import KILL
from ncclforensics.frames.columns import may_be_one_host

# torchrun sends SIGTERM to the other processes of a host, and SIGKILL 30 s later (PContext.close of
# torch/distributed/elastic/multiprocessing/api.py); it looks for ended processes more often than that.
CLOSING_TIME, LOOKING_TIME = timedelta(seconds=25), timedelta(seconds=2)
CLOCKS_DIFFER = timedelta(minutes=5)  # of hosts; NTP keeps them closer, and not all hosts have it


def is_killed_by_launcher(report: ExitReport, first: ExitReport) -> bool:
    """Whether torchrun killed a process: after the first failure on its host, when it had not ended by SIGTERM."""
    distance = _distance(report, first)
    is_beside = first.node is not None and first.node == report.node  # both had ended when torchrun looked
    return report.signal == KILL and distance is not None and distance >= (LOOKING_TIME if is_beside else CLOSING_TIME)


def is_close_on_another_host(report: ExitReport, other: ExitReport) -> bool:
    """Whether two processes of different hosts ended so close together that clocks may have exchanged their order."""
    if not (report.node and other.node) or may_be_one_host(report.node, other.node):
        return False
    distance = _distance(report, other)
    return distance is not None and abs(distance) < CLOCKS_DIFFER


def _distance(report: ExitReport, other: ExitReport) -> timedelta | None:
    """How much later a process ended than another one; None if that is unknown."""
    try:
        return datetime.fromisoformat(report.time) - datetime.fromisoformat(other.time)
    except (ValueError, TypeError):  # no time, or one of them with a zone
        return None
