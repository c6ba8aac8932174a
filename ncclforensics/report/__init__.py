"""Findings to the answer on one run: summary, selection, redaction."""
