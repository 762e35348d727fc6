"""Processes of a job: ended, failed, stopped by a signal, and never left behind."""

from __future__ import annotations

import os
import signal
import time

import pytest

from qontext.cluster.launcher import Processes, Torchrun, watch
from qontext.frame.errors import QontextError


class Countdown(Processes):
    """Has ended after three looks; at the second one, `at_second` happens."""

    def __init__(self, at_second=lambda: None):
        self.left, self.calls, self.at_second = 3, [], at_second

    def wait(self, seconds):
        self.calls.append("wait")
        self.left -= 1
        if self.left == 1:
            self.at_second()
        return self.left > 0

    def stop(self):
        self.calls.append("stop")

    def end(self):
        self.calls.append("end")


def test_a_group_is_watched_until_it_has_ended():
    group = Countdown()
    watch(group)
    assert group.calls == ["wait", "wait", "wait", "end"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_a_group(number):
    before = signal.signal(
        number, signal.default_int_handler
    )  # it may be ignored where the tests run in the background
    try:
        group = Countdown(lambda: os.kill(os.getpid(), number))
        with pytest.raises(KeyboardInterrupt):
            watch(group)
        assert group.calls == ["wait", "wait", "stop", "end"]
        assert signal.getsignal(number) == signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_an_error_ends_a_group():
    def fail():
        raise QontextError("a rank failed")

    group = Countdown(fail)
    with pytest.raises(QontextError, match="a rank failed"):
        watch(group)
    assert group.calls == ["wait", "wait", "end"]


def test_ranks_that_fail_are_the_error_of_the_command(capfd, monkeypatch):
    monkeypatch.setattr(Torchrun, "_start", lambda self: _child("raise SystemExit(3)"))
    with pytest.raises(QontextError, match="stopped"):
        watch(Torchrun(2, ["run"], QontextError("stopped")))


def test_ranks_get_the_signal_and_may_take_their_time(monkeypatch, tmp_path):
    script = f"""
import signal, time, pathlib
def stop(*_):
    time.sleep(0.3)
    pathlib.Path({str(tmp_path / "saved")!r}).touch()
    raise SystemExit(1)
signal.signal(signal.SIGTERM, stop)
pathlib.Path({str(tmp_path / "ready")!r}).touch()
time.sleep(600)
"""
    group = Torchrun(2, ["run"], QontextError("stopped"))
    monkeypatch.setattr(Torchrun, "_start", lambda self: _child(script))
    wait = group.wait

    def interrupted(seconds):
        if (tmp_path / "ready").exists():
            os.kill(os.getpid(), signal.SIGTERM)
        return wait(0.1)

    monkeypatch.setattr(group, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        watch(group)
    assert (tmp_path / "saved").exists()
    assert group.child is not None and group.child.returncode == 1


def _child(script):
    import subprocess
    import sys

    return subprocess.Popen([sys.executable, "-c", script])


def test_a_second_signal_ends_all_processes_at_once(monkeypatch, tmp_path):
    """Those of torchrun are in sessions of their own, and finish their step after a first signal."""
    rank = f"""
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, lambda *_: None)
pathlib.Path({str(tmp_path / "rank")!r}).write_text(str(os.getpid()))
while True:
    time.sleep(1)
"""
    script = f"""
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: None)
subprocess.Popen([sys.executable, "-c", {rank!r}], start_new_session=True).wait()
"""
    group = Torchrun(2, ["run"], QontextError("stopped"))
    monkeypatch.setattr(Torchrun, "_start", lambda self: _child(script))
    wait, stop = group.wait, group.stop

    def interrupted(seconds):
        if (tmp_path / "rank").exists() and (tmp_path / "rank").read_text():
            os.kill(os.getpid(), signal.SIGTERM)
        return wait(0.1)

    def stopped():
        os.kill(os.getpid(), signal.SIGTERM)
        stop()

    monkeypatch.setattr(group, "wait", interrupted)
    monkeypatch.setattr(group, "stop", stopped)
    with pytest.raises(KeyboardInterrupt):
        watch(group)
    assert group.child is not None and group.child.returncode == -signal.SIGKILL
    pid = int((tmp_path / "rank").read_text())
    while _is_alive(pid):
        time.sleep(0.01)


def _is_alive(pid):
    """Not ended; one that ended and that nobody asks about (as in a container without an init) is not alive either."""
    import subprocess

    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(state.stdout.strip()) and not state.stdout.strip().startswith("Z")
