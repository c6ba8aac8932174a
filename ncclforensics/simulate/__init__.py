"""Logs of jobs that never ran, with a chosen fault and a known truth: to rehearse, and to test a pipeline."""
