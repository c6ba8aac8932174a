"""Bandwidth against what is expected, and benchmarks that failed."""
