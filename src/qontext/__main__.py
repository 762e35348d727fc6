"""The entry point of the `qontext` command and of `python -m qontext`: interrupt handling is installed before
anything else."""

import os
import sys

# Of `python -m qontext`, Python puts the current folder first: what lies there must not take the place of a library. A class
# of it that is named (module:Class) is still found, after all others.
if __name__ == "__main__" and sys.path[:1] == [os.getcwd()] and not os.environ.get("PYTHONPATH"):  # noqa: PTH109
    del sys.path[0]

from qontext.frame import process


def main() -> None:
    process.run_command(_run)


def _run() -> None:
    from qontext.cli import run_app

    run_app()


if __name__ == "__main__":
    main()
