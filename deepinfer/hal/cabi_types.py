"""ctypes mirror of include/deepinfer/driver.h; a test compares field order and sizes with what the C compiler says."""

from __future__ import annotations

import ctypes as ct
from typing import Any

ABI_MAJOR = 1
ABI_MINOR = 0

Handle = ct.c_uint64
Address = ct.c_uint64


class CProbe(ct.Structure):
    """di_probe"""

    _fields_ = (
        ("struct_size", ct.c_uint32),
        ("available", ct.c_uint32),
        ("device_count", ct.c_uint32),
        ("reason", ct.c_char * 512),
        ("version", ct.c_char * 128),
    )


class CDeviceProps(ct.Structure):
    """di_device_props"""

    _fields_ = (
        ("struct_size", ct.c_uint32),
        ("kind", ct.c_uint32),
        ("name", ct.c_char * 96),
        ("arch", ct.c_char * 32),
        ("compute_units", ct.c_uint32),
        ("clock_khz", ct.c_uint32),
        ("memory_bytes", ct.c_uint64),
        ("l2_bytes", ct.c_uint64),
        ("scratch_bytes", ct.c_uint64),
        ("caps", ct.c_uint64),
        ("memory_bandwidth", ct.c_uint64),
    )


class CArg(ct.Structure):
    """di_arg"""

    _fields_ = (
        ("kind", ct.c_uint32),
        ("size", ct.c_uint32),
        ("data", ct.c_void_p),
        ("base", Address),
        ("span", ct.c_uint64),
        ("writable", ct.c_uint32),
        ("reserved", ct.c_uint32),
    )


class CDim3(ct.Structure):
    """di_dim3"""

    _fields_ = (("x", ct.c_uint32), ("y", ct.c_uint32), ("z", ct.c_uint32))


def _fn(*argtypes: Any) -> Any:
    return ct.CFUNCTYPE(ct.c_int, *argtypes)


_HANDLE_OUT = ct.POINTER(Handle)

FUNCTIONS: tuple[tuple[str, Any], ...] = (
    ("last_error", ct.CFUNCTYPE(ct.c_char_p)),
    ("probe", _fn(ct.POINTER(CProbe))),
    ("device_props", _fn(ct.c_uint32, ct.POINTER(CDeviceProps))),
    ("open", _fn(ct.c_uint32, _HANDLE_OUT)),
    ("release", _fn(Handle)),
    ("mem_info", _fn(Handle, ct.POINTER(ct.c_uint64), ct.POINTER(ct.c_uint64))),
    ("mem_alloc", _fn(Handle, ct.c_uint64, ct.c_uint64, ct.POINTER(Address))),
    ("mem_free", _fn(Handle, Address)),
    ("memcpy_async", _fn(Handle, Address, Address, ct.c_uint64, ct.c_uint32, Handle)),
    ("memset_async", _fn(Handle, Address, ct.c_uint8, ct.c_uint64, Handle)),
    ("stream_create", _fn(Handle, _HANDLE_OUT)),
    ("stream_synchronize", _fn(Handle, Handle)),
    ("event_create", _fn(Handle, _HANDLE_OUT)),
    ("event_record", _fn(Handle, Handle, Handle)),
    ("event_wait", _fn(Handle, Handle, Handle)),
    ("event_synchronize", _fn(Handle, Handle)),
    ("event_elapsed_ms", _fn(Handle, Handle, Handle, ct.POINTER(ct.c_double))),
    ("module_load", _fn(Handle, ct.c_void_p, ct.c_uint64, ct.c_char_p, _HANDLE_OUT)),
    ("function", _fn(Handle, ct.c_char_p, _HANDLE_OUT)),
    ("launch", _fn(Handle, CDim3, CDim3, ct.c_uint32, ct.POINTER(CArg), ct.c_uint32, Handle)),
    ("extension", _fn(ct.c_char_p, ct.POINTER(ct.c_void_p))),
)


class CDriverTable(ct.Structure):
    """di_driver"""

    _fields_ = (
        ("struct_size", ct.c_uint32),
        ("abi_major", ct.c_uint16),
        ("abi_minor", ct.c_uint16),
        ("name", ct.c_char_p),
        ("kind", ct.c_uint32),
        ("reserved", ct.c_uint32),
        *FUNCTIONS,
    )
