"""Commands run as subprocesses."""

from __future__ import annotations

import subprocess
import sys

PARENT = """
import os, signal, sys, threading, time
from fairseq_resid.cli import children

def signal_later():
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=signal_later).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # so that the other thread receives it
child = "import signal, time; signal.pthread_sigmask(signal.SIG_SETMASK, []); time.sleep(60)"
children.run([sys.executable, "-c", child], notice="stopping\\n")
"""


def test_signal_that_another_thread_receives_stops_the_command() -> None:
    """The kernel chooses another thread if the main thread is still stopped by SIGSTOP."""
    done = subprocess.run([sys.executable, "-c", PARENT], timeout=50, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (128 + 15, "stopping\n")
