"""Calls of the operating system that fail, one after the other, and what must hold after each."""
