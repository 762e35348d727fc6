"""Starts commands of qontext in processes that have the heavy libraries imported already: a fork each, not an import.

One order per line of JSON on stdin: {"argv": …, "cwd": …, "env": …, "output": file} starts a command and is answered with
its process id; with "code" in place of "argv" it starts Python code; with "interrupt": directory, it gets a SIGINT in the
last step of the training that writes this directory. {"wait": process id} is answered with its exit status. Parts are
small, so that a few documents make several of them. {"poll": process id} is answered with 1 if it has ended, else with 0.
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.preload import preload

from qontext.corpus import blocks, tokens
from qontext.finetune.negatives import mine
from qontext.retrieve import encode, search
from qontext.training.step import Stepper

preload()
blocks.RECORDS_PER_BLOCK, blocks.BLOCKS_PER_PART = 4, 2
tokens.TEXTS_PER_BLOCK, tokens.TEXTS_PER_CHUNK = 16, 32
encode.BLOCK = 16
search.BLOCK = 4
mine.PART = 6


def run(order: dict[str, Any]) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for handle in (1, 2):
        os.dup2(output, handle)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(order["cwd"])
    os.environ.update(order["env"])
    from qontext.__main__ import main

    if order.get("interrupt"):
        interrupt_last_step(Path(order["interrupt"]))
    try:
        if "code" in order:
            exec(order["code"], {"__name__": "__main__"})
            return 0
        sys.argv = ["qontext", *order["argv"]]
        main()
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def interrupt_last_step(out: Path) -> None:
    """Send this process the signal of a Ctrl-C in the last step of the training that writes `out`."""
    step = Stepper.step

    def then_interrupt(self: Stepper, number: int, batch: Any, *place: Any) -> None:
        step(self, number, batch, *place)
        if number + 1 == self.optimizer.steps and out.is_dir():
            os.kill(os.getpid(), signal.SIGINT)

    Stepper.step = then_interrupt  # type: ignore[method-assign]


def serve() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            print(os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1]), flush=True)
            continue
        if "poll" in order:
            ended = os.waitid(os.P_PID, order["poll"], os.WEXITED | os.WNOHANG | os.WNOWAIT)
            print(int(ended is not None), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            code = run(order)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        print(pid, flush=True)


serve()
os._exit(0)  # not through the libraries' own clean-up, which takes seconds
