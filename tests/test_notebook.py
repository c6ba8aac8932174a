"""The example notebook runs from top to bottom, and shows the verdict, the frames and a picture."""

from __future__ import annotations

from typing import Any

import pytest

from tests.incidents import ROOT

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


# One process builds what they share.
pytestmark = pytest.mark.xdist_group("notebook")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The outputs of all cells, in order; no cell fails."""
    nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        folder = {"metadata": {"path": str(NOTEBOOK.parent)}}
        nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources=folder).execute()
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def test_the_notebook_shows_report_frames_and_a_picture(outputs: list[dict[str, Any]]) -> None:
    shown = [output.get("data", {}) for output in outputs]
    pages = [data["text/html"] for data in shown if "text/html" in data]

    assert not [output for output in outputs if output["output_type"] == "error"]
    assert "LAGGING-RANKS" in pages[0]
    assert any("('lagging-ranks', 'likely', [11])" in data.get("text/plain", "") for data in shown)
    assert any("AllReduce" in page and "bfloat16" in page for page in pages[1:])
    assert any("crimson" in data.get("image/svg+xml", "") for data in shown)


def test_the_notebook_is_stored_without_outputs() -> None:
    assert '"outputs": []' in NOTEBOOK.read_text(encoding="utf-8")
    assert '"output_type"' not in NOTEBOOK.read_text(encoding="utf-8")
