"""Signals by which a training ends in order."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

_PREEMPT = "_TUTTI_PREEMPT_SIGNAL"  # of `tutti run --preempt-signal`, below which it is ignored until somebody wants it


class StopSignals:
    """SIGTERM, and the signal of `tutti run --preempt-signal`, are noted while this is entered, in the main thread, unless
    the program has a handler of its own. The second of the same kind ends the process, and so does one that comes when
    the last step has been made, once that is saved."""

    def __init__(self) -> None:
        self.number = 0
        """The signal that came; 0 if none has."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        preempt = int(os.environ.get(_PREEMPT, "0"))
        for number in {int(signal.SIGTERM), preempt} - {0}:
            before = signal.getsignal(number)
            if before == signal.SIG_DFL or (before == signal.SIG_IGN and number == preempt):
                self._before[number] = signal.signal(number, self._note)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        if self.number and kind is None:
            os.kill(os.getpid(), self.number)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.number == number:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.number = self.number or number


__all__ = ["StopSignals"]
