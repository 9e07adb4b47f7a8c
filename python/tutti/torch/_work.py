"""What a collective returns to torch.distributed."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..communicator import Work as TuttiWork


class Work(dist.Work):
    """An operation on tensors. Before it has ended for its caller, `after` writes its result where it belongs."""

    def __init__(
        self,
        running: Sequence[TuttiWork] = (),
        result: Any = (),
        after: Sequence[Callable[[], None]] = (),
    ) -> None:
        super().__init__()
        self._running = running
        self._result = result
        self._after = list(after)
        self._lock = threading.Lock()
        self._future: torch.futures.Future[Any] | None = None
        self.sender = ctypes.c_int(-1)
        if not running:
            self._finish()

    def _finish(self) -> None:
        with self._lock:
            while self._after:
                self._after.pop()()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        for running in self._running:
            running.wait()
        self._finish()
        return True

    def is_completed(self) -> bool:
        try:
            return all(running.done() for running in self._running)
        except Exception:  # noqa: BLE001 - wait() raises it
            return True

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        try:
            if self.is_completed():
                self.wait()
        except Exception as error:  # noqa: BLE001
            return error
        return None

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> Any:
        return self._result

    def source_rank(self) -> int:
        return self.sender.value

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        if self._future is not None:
            return self._future
        future: torch.futures.Future[Any] = torch.futures.Future()
        self._future = future

        def done() -> None:
            try:
                self.wait()
            except Exception as error:  # noqa: BLE001
                future.set_exception(error)
            else:
                future.set_result(self._result)

        if self._running:
            # Operations of one group end in the order of their calls.
            self._running[-1].then(done)
        else:
            done()
        return future
