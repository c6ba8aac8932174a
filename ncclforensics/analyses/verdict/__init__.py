"""Explanations of verdicts: conditions of machines, and the failures of jobs that they explain."""
