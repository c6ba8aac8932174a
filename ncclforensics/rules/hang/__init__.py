"""Ranks that wait, differ, or never started."""
