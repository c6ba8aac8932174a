"""Comparing sources with each other leaves nothing open, whatever fails."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from ncclforensics.inputs.copies import beginning
from ncclforensics.inputs.sources import find


class ClosesWithError(io.BytesIO):
    """A file of a server that reports only at the end that it could not read it."""

    def close(self) -> None:
        if not self.closed:
            super().close()
            raise OSError(5, "Input/output error")


def test_a_file_that_fails_when_it_is_closed_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rank0.log").write_bytes(b"line\n" * 50_000)
    (source,) = find([str(tmp_path / "rank0.log")])
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    monkeypatch.setattr(type(source), "open", lambda self: ClosesWithError(b"line\n" * 50_000))

    assert beginning(source) == b""
    assert unraisable == []
