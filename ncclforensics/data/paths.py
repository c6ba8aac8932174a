"""What stands for something else than a file."""

STDIN = "-"  # the path of standard input
