"""Hostile inputs of every kind, drawn from a seed, and what must hold whatever they contain."""
