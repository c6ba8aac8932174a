"""Findings and frames made visible."""
