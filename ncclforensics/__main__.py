"""Run the command line with `python -m ncclforensics`."""

from ncclforensics.cli import run

if __name__ == "__main__":
    run()
