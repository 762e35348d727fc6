"""The entry point of the `qontext` command and of `python -m qontext`: interrupt handling is installed before
anything else."""

import sys

from qontext.frame import interrupts


def main() -> None:
    if sys.platform == "win32":
        sys.exit("error: Qontext runs on Linux and macOS. On Windows, run it in WSL.")
    interrupts.command(_run)


def _run() -> None:
    from qontext.cli import run_app

    run_app()


if __name__ == "__main__":
    main()
