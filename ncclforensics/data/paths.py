"""Paths with a special meaning."""

STDIN = "-"  # the path of standard input
