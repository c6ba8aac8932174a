"""Tables of a saved run have names instead of codes, and the queries that the documentation shows run on them."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from ncclforensics import analyze, cli
from tests.incidents import INCIDENTS, ROOT

PAGE = (ROOT / "docs" / "queries.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("saved") / "run.ncclf"
    logs = str(INCIDENTS / "one-rank-stops-before-an-allreduce" / "*.log")
    assert cli.main(["save", logs, "-o", str(file), "--tables", "-q"]) == 0
    return file


@pytest.fixture(scope="module")
def tables(saved: Path) -> dict[str, pl.DataFrame]:
    with zipfile.ZipFile(saved) as archive:
        names = [name for name in archive.namelist() if name.startswith("tables/")]
        return {Path(name).stem: pl.read_parquet(io.BytesIO(archive.read(name))) for name in names}


def test_tables_have_names_and_ranks_of_the_job(tables: dict[str, pl.DataFrame]) -> None:
    (last,) = tables["call"].filter(rank=11, communicator="0x56271b239b014649/0.2").sort("ordinal").tail(1).to_dicts()
    (finding,) = tables["finding"].filter(rule="coll-lagging-ranks").to_dicts()

    assert (last["ordinal"], last["name"], last["datatype"], last["op"]) == (12, "AllReduce", "bfloat16", "sum")
    assert tables["verdict"]["culprits"].to_list() == [[11]]
    assert finding["ranks"] == [11]
    assert finding["evidence"][-1]["text"].startswith("gpu-node-01:23904")


def test_every_table_that_has_rows_is_documented(tables: dict[str, pl.DataFrame]) -> None:
    assert [name for name in tables if f"`{name}`" not in PAGE] == []


def test_a_saved_run_with_tables_gives_the_same_verdict(saved: Path) -> None:
    assert analyze(saved).verdicts[0].verdict == "lagging-ranks"


@pytest.mark.parametrize("query", QUERIES)
def test_the_documented_queries_run_in_polars(query: str, tables: dict[str, pl.DataFrame]) -> None:
    answer = pl.SQLContext(tables, eager=True).execute(query)

    assert (answer.height > 0) == ("DISTINCT" not in query)


@pytest.mark.parametrize("query", QUERIES)
def test_the_documented_queries_run_in_duckdb(query: str, tables: dict[str, pl.DataFrame], tmp_path: Path) -> None:
    with duckdb.connect() as connection:
        for name, table in tables.items():
            table.write_parquet(tmp_path / f"{name}.parquet")
            connection.execute(f"CREATE VIEW {name} AS FROM '{tmp_path / name}.parquet'")
        rows = connection.execute(query).fetchall()

    assert (len(rows) > 0) == ("DISTINCT" not in query)


@pytest.mark.parametrize("program", PROGRAMS, ids=["Polars", "the program"])
def test_the_documented_programs_run(program: str, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(saved.parent)
    names: dict[str, Any] = {}
    exec(program, names)

    assert names["shown"].row(0)[0] == 0
