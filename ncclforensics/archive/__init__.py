"""Saved runs: write the frames of a run as Parquet with a manifest, and read them back."""
