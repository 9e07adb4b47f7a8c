"""The C interface of libtutti_comm (tutti/c/tutti.h), by ctypes."""

from __future__ import annotations

import ctypes
import os
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_int,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
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


class Sampling(Structure):
    """tutti_sampling"""

    _fields_ = [
        ("size", c_size_t),
        ("examples", c_int64),
        ("lanes", c_int64),
        ("batch", c_int64),
        ("seed", c_int64),
        ("in_order", c_int),
        ("drop_remainder", c_int),
    ]


def _load() -> ctypes.CDLL:
    name = "libtutti_comm.so.1"
    own = os.path.join(os.path.dirname(__file__), "lib", name)
    return ctypes.CDLL(own if os.path.exists(own) else name)


library: Any = _load()
"""Its functions. Python's lock is free during a call."""

_COMM = _WORK = _SUM = _BUFFER = c_void_p
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
    "tutti_lanes_of": (c_int, [c_int, c_int, c_int64, POINTER(c_int64), POINTER(c_int64)]),
    "tutti_lane_seed": (c_uint64, [c_int64, c_int64, c_int64]),
    "tutti_steps_per_epoch": (c_int, [POINTER(Sampling), POINTER(c_int64)]),
    "tutti_lane_examples": (c_int, [POINTER(Sampling), c_int64, c_int64, POINTER(c_int64), POINTER(c_size_t)]),
    "tutti_lane_sum_new": (c_int, [_COMM, c_int64, _BUFFER, c_size_t, c_int, POINTER(c_void_p)]),
    "tutti_lane_sum_add": (c_int, [_SUM, c_int]),
    "tutti_lane_sum_finish": (c_int, [_SUM, c_double, _OPTIONS]),
    "tutti_lane_sum_reset": (c_int, [_SUM]),
    "tutti_lane_sum_free": (None, [_SUM]),
    "tutti_crc32c": (c_uint32, [c_void_p, c_size_t, c_uint32]),
}
for _name, (_result, _arguments) in _SIGNATURES.items():
    _function = getattr(library, _name)
    _function.restype = _result
    _function.argtypes = _arguments
