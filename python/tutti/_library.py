"""The C interface of libtutti_comm (tutti/c/tutti.h), by ctypes."""

from __future__ import annotations

import ctypes
import os
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

SET = CFUNCTYPE(c_int, c_void_p, c_char_p, c_char_p)
FOUND = CFUNCTYPE(None, c_void_p, c_char_p)
GET = CFUNCTYPE(c_int, c_void_p, c_char_p, c_double, FOUND, c_void_p)
DONE = CFUNCTYPE(None, c_void_p)


class Store(Structure):
    """tutti_store"""

    _fields_ = [("size", c_size_t), ("context", c_void_p), ("set", SET), ("get", GET)]


class InitOptions(Structure):
    """tutti_init_options"""

    _fields_ = [
        ("size", c_size_t),
        ("timeout_seconds", c_double),
        ("transport", c_char_p),
        ("store", POINTER(Store)),
        ("rank", c_int),
        ("world", c_int),
        ("name", c_char_p),
    ]


class Options(Structure):
    """tutti_options"""

    _fields_ = [
        ("size", c_size_t),
        ("timeout_seconds", c_double),
        ("what", c_char_p),
        ("work", POINTER(c_void_p)),
        ("any_order", c_int),
    ]


def _load() -> ctypes.CDLL:
    name = "libtutti_comm.so.1"
    own = os.path.join(os.path.dirname(__file__), "lib", name)
    return ctypes.CDLL(own if os.path.exists(own) else name)


library: Any = _load()
"""Its functions. Python's lock is free during a call."""

_COMM = _WORK = _BUFFER = c_void_p
_OPTIONS = POINTER(Options)
_POINTERS = _COUNTS = c_void_p

_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "tutti_c_version": (c_int, []),
    "tutti_version": (c_char_p, []),
    "tutti_error_text": (c_char_p, []),
    "tutti_init": (c_int, [POINTER(InitOptions), POINTER(c_void_p)]),
    "tutti_free": (None, [_COMM]),
    "tutti_abort": (None, [_COMM, c_char_p]),
    "tutti_rank": (c_int, [_COMM]),
    "tutti_world": (c_int, [_COMM]),
    "tutti_local_rank": (c_int, [_COMM]),
    "tutti_local_world": (c_int, [_COMM]),
    "tutti_transport": (c_char_p, [_COMM]),
    "tutti_group": (c_int, [_COMM, POINTER(c_int), c_int, c_char_p, POINTER(c_void_p)]),
    "tutti_all_reduce": (c_int, [_COMM, _BUFFER, _BUFFER, c_size_t, c_int, c_int, _OPTIONS]),
    "tutti_reduce": (c_int, [_COMM, _BUFFER, _BUFFER, c_size_t, c_int, c_int, c_int, _OPTIONS]),
    "tutti_broadcast": (c_int, [_COMM, _BUFFER, c_size_t, c_int, c_int, _OPTIONS]),
    "tutti_all_gather": (c_int, [_COMM, _BUFFER, _BUFFER, c_size_t, c_int, _OPTIONS]),
    "tutti_all_gather_v": (c_int, [_COMM, _BUFFER, _POINTERS, _COUNTS, c_int, _OPTIONS]),
    "tutti_reduce_scatter": (c_int, [_COMM, _BUFFER, _BUFFER, c_size_t, c_int, c_int, _OPTIONS]),
    "tutti_reduce_scatter_v": (c_int, [_COMM, _BUFFER, _BUFFER, _COUNTS, c_int, c_int, _OPTIONS]),
    "tutti_all_to_all": (c_int, [_COMM, _BUFFER, _BUFFER, c_size_t, c_int, _OPTIONS]),
    "tutti_all_to_all_v": (c_int, [_COMM, _POINTERS, _COUNTS, _POINTERS, _COUNTS, c_int, _OPTIONS]),
    "tutti_gather": (c_int, [_COMM, _BUFFER, _POINTERS, c_size_t, c_int, c_int, _OPTIONS]),
    "tutti_scatter": (c_int, [_COMM, _POINTERS, _BUFFER, c_size_t, c_int, c_int, _OPTIONS]),
    "tutti_send": (c_int, [_COMM, _BUFFER, c_size_t, c_int, c_int, c_int, _OPTIONS]),
    "tutti_recv": (c_int, [_COMM, _BUFFER, c_size_t, c_int, c_int, c_int, POINTER(c_int), _OPTIONS]),
    "tutti_barrier": (c_int, [_COMM, _OPTIONS]),
    "tutti_wait": (c_int, [_WORK]),
    "tutti_test": (c_int, [_WORK, POINTER(c_int)]),
    "tutti_then": (c_int, [_WORK, DONE, c_void_p]),
    "tutti_work_free": (None, [_WORK]),
    "tutti_epoch": (c_uint64, [_COMM]),
    "tutti_change_is_due": (c_int, [_COMM, POINTER(c_int)]),
    "tutti_reconfigure": (c_int, [_COMM]),
}
for _name, (_result, _arguments) in _SIGNATURES.items():
    _function = getattr(library, _name)
    _function.restype = _result
    _function.argtypes = _arguments
