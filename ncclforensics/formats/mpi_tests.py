"""Output of micro-benchmarks of MPI and UCX: OSU's tests, and ucx_perftest."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("mpitests",)
SIGNATURES = ("mpi_test", "mpi_test_head", "ucx_test.units", "ucx_test.columns")
KINDS = dict.fromkeys(("mpi_test_head", "mpi_test_row", "ucx_test"), "perftest")
NOUN = nouns.LINK_TEST
