"""Rewards of a user, for the tests."""

import os
import signal
import sys
import time

import numpy as np


def length(text, row):
    return min(1.0, len(text) / row["scale"])


def hangs(text, row):
    if "hang" in text:
        time.sleep(600)
    return 1.0


def dies(text, row):
    os.kill(os.getpid(), signal.SIGKILL)


def raises(text, row):
    raise LookupError("no such thing")


def leaves(text, row):
    sys.exit(0)


def too_much(text, row):
    return 2.0


def numpy_says(text, row):
    return {"half": np.float32(0.5), "yes": np.True_, "one": np.int64(1)}[text]


NOT_A_FUNCTION = 3
