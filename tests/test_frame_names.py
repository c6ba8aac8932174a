"""A frame has one provider: a rule of a grammar, an analysis, or the run."""

from __future__ import annotations

import polars as pl
import pytest

import ncclforensics.analyses  # noqa: F401  # registers the analyses
from ncclforensics.formats import dialect
from ncclforensics.frames import registry
from ncclforensics.frames.registry import analysis


@pytest.mark.parametrize(
    ("name", "provider"),
    [
        ("operation", r"grammars/operation\.lark"),
        ("call", r"ncclforensics\.analyses\.job\.\w+\.\w+\.call"),
        ("speaker", r"frames\.run"),
    ],
)
def test_an_analysis_with_the_name_of_another_frame_is_refused(name: str, provider: str) -> None:
    def compute() -> pl.DataFrame:
        return pl.DataFrame()

    compute.__name__ = compute.__qualname__ = name

    with pytest.raises(ValueError, match=rf"two frames are called {name}: {provider} and .*test_frame_names"):
        analysis({})(compute)


def test_the_names_of_all_parsed_frames_are_known_to_the_registry() -> None:
    frames = {shape.frame for shape in dialect().with_all_formats.shapes}

    assert [frame for frame in sorted(frames) if "grammars/" not in registry.provider(frame)] == []
