"""Synthetic runs with a known truth, and what they are timed with."""
