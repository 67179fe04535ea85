"""Environments of users: a corridor with a coin, with and without snapshots, and bad ones."""

import os
import random
import sys
import time

import numpy as np


class Corridor:
    """A corridor of `length` places; the coin lies at the row's place."""

    def __init__(self, length=5):
        self.length = length

    def reset(self, row):
        self.coin, self.at = row["coin"], 0
        return "ignored"

    def step(self, action):
        if action.strip() not in ("left", "right", "take"):
            raise ValueError(f"no way {action.strip()!r}")
        if action.strip() == "take":
            won = self.at == self.coin
            return ("you have the coin" if won else "nothing here"), float(won), won
        self.at += 1 if action.strip() == "right" else -1
        self.at = max(0, min(self.length - 1, self.at))
        return f"place {self.at}", 0.0, False


class Saved(Corridor):
    """The same with snapshots, and with the place as its anchor."""

    def snapshot(self):
        return bytes([self.at])

    def restore(self, taken):
        self.at = taken[0]

    @property
    def anchor(self):
        return f"at {self.at}"


class Dice:
    """Throws that the seed decides, and the five values of Gymnasium."""

    def reset(self, row, seed):
        self.random = random.Random(seed)

    def step(self, action):
        number = str(self.random.randint(1, 10**9))
        return number, np.float32(1), np.bool_(False), np.bool_(action == "stop"), {}


class Worded:
    """The order of a set of words, which is that of their hashes."""

    deterministic = True

    def reset(self, row):
        pass

    def step(self, action):
        return " ".join({f"w{number}" for number in range(50)}), 0.0, False


class Drifting:
    """Answers that no seed decides."""

    def reset(self, row):
        pass

    def step(self, action):
        return str(time.time_ns()), 0.0, False


class Long:
    def reset(self, row):
        pass

    def step(self, action):
        return "\0" * 10**6 + "end", 0.0, False


class Bad:
    """Breaks at the place that it is told."""

    def __init__(self, where="step"):
        if where == "init":
            raise RuntimeError("no init")
        self.where = where
        if where == "effect":
            self.effect = "external"
        if where == "anchor":
            self.anchor = 7
        if where in ("snapshot", "large"):
            self.snapshot = lambda: "text" if where == "snapshot" else bytes(40_000)
            self.restore = print

    def reset(self, row):
        if self.where == "reset":
            raise KeyError("field")
        return (one for one in ()) if self.where == "later" else None

    def step(self, action):
        if self.where == "step":
            return "only a text"
        if self.where == "reward":
            return "x", float("nan"), False
        if self.where == "exit":
            sys.exit(0)
        if self.where == "memory":
            return "x" * 10**11, 0.0, False
        if self.where == "crash":
            os._exit(3)
        if self.where == "kill":
            os.kill(os.getpid(), 9)
        if self.where == "hang":
            while True:
                pass
        if self.where == "sleep":
            time.sleep(60)
        return "x", 0.0, False


no_class = 3
