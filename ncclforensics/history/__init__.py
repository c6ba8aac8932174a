"""Verdicts and facts of many runs in one SQLite file: what returns, what changed, what is unusual."""
