"""Follow the logs of a running job, and ask for a verdict when it stands still."""
