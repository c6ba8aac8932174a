"""The report on one run: findings and verdicts, the summary, the selection to show, and redaction."""
