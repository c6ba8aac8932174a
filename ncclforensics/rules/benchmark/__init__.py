"""Benchmarks that are slower than expected, wrong, or failed."""
