"""Saved runs: one file with a manifest and the frames of a run as Parquet."""
