"""Ctrl-C while the library waits for other ranks, and forks.

Python handles a signal in its main thread, once the call of the library has returned. So another thread hears of the
signal at the same time, and makes the call return: the ranks of its communicator fail, all with the reason.
"""

from __future__ import annotations

import os
import signal
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

    from .communicator import Communicator

_watched: weakref.WeakSet[Communicator] = weakref.WeakSet()
_begun = False


def _forget_all() -> None:
    for comm in list(_watched):
        comm.forget()


os.register_at_fork(after_in_child=_forget_all)


def watch(comm: Communicator) -> None:
    """From now on, a Ctrl-C ends the waits of this communicator."""
    _watched.add(comm)
    _begin()


def _begin() -> None:
    global _begun
    if _begun or threading.current_thread() is not threading.main_thread():
        return
    import socket  # here, since it takes a third of the time of `import tutti`

    heard, told = socket.socketpair()
    told.setblocking(False)
    before = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    if before != -1:  # somebody else hears of signals in this way, such as asyncio
        signal.set_wakeup_fd(before)
        return
    _begun = True
    threading.Thread(target=_listen, args=(heard, told), name="tutti interrupts", daemon=True).start()


def _listen(heard: socket.socket, told: socket.socket) -> None:
    while told.fileno() >= 0:
        numbers = heard.recv(64)
        if signal.SIGINT not in numbers or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            continue
        for comm in list(_watched):
            if comm.waits:
                comm.abort(f"rank {comm.rank} was interrupted")
