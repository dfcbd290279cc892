"""libascendcl.so, found and opened with dlopen on first use: its functions by name, and errors that say what to do.

Never run against the vendor's library: names and argument orders follow its public headers and are tested against a
stand-in (tests/fake_ascendcl.c). Invariants: importing this loads nothing; a library that lacks a needed function is
refused with the names; every failing call raises with function, status, the runtime's own text and a remedy.
"""

from __future__ import annotations

import ctypes as ct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from deepinfer.errors import BackendUnavailable, DriverError
from deepinfer_ascend950.toolchain.bisheng import toolkit

LIBRARY = "libascendcl.so"
SYMBOLS = (
    "aclInit",
    "aclGetRecentErrMsg",
    "aclrtSetDevice",
    "aclrtGetDevice",
    "aclrtGetDeviceCount",
    "aclrtGetDeviceInfo",
    "aclrtGetSocName",
    "aclrtGetMemInfo",
    "aclrtMalloc",
    "aclrtFree",
    "aclrtMemcpyAsync",
    "aclrtMemsetAsync",
    "aclrtCreateStream",
    "aclrtDestroyStream",
    "aclrtSynchronizeStream",
    "aclrtSynchronizeDevice",
    "aclrtCreateEvent",
    "aclrtDestroyEvent",
    "aclrtRecordEvent",
    "aclrtStreamWaitEvent",
    "aclrtSynchronizeEvent",
    "aclrtEventElapsedTime",
    "aclrtBinaryLoadFromFile",
    "aclrtBinaryUnLoad",
    "aclrtBinaryGetFunction",
    "aclrtLaunchKernelWithHostArgs",
)
PEER_SYMBOLS = (
    "aclrtDeviceCanAccessPeer",
    "aclrtDeviceEnablePeerAccess",
    "aclrtIpcMemGetExportKey",
    "aclrtIpcMemImportByKey",
    "aclrtIpcMemClose",
)
INSTALL = "install the Ascend driver and CANN 9.1 or later, and source its set_env.sh in this shell"
REPEATED_INIT = 100002
# What statuses of the runtime mean for the caller; the rest is in its own message.
REMEDIES = {
    100000: "an argument was refused; please report this with the message",
    107001: "no such device: check `npu-smi info` and ASCEND_RT_VISIBLE_DEVICES",
    107002: "no device is set on this thread; open it through deepinfer",
    207001: "the device is out of memory: use smaller batches or free tensors",
    507008: "the driver does not answer: check `npu-smi info` and the kernel log",
    507015: "an AI core stopped inside a kernel: run the same call on ascend950/sim, whose checkers name the place",
    507033: "this process may not use the device: check the permissions of /dev/davinci*",
}


def _missing(library: ct.CDLL, names: Sequence[str]) -> list[str]:
    return [name for name in names if not hasattr(library, name)]


@lru_cache(maxsize=1)
def _open(path: str) -> tuple[ct.CDLL | None, str]:
    """(library, "") or (None, why not)."""
    try:
        library = ct.CDLL(path)
    except OSError as error:
        root = toolkit()
        where = f"CANN is set to {root}" if root else "neither ASCEND_HOME_PATH nor ASCEND_TOOLKIT_HOME is set"
        return None, f"{path} cannot be loaded: {error} ({where})"
    missing = _missing(library, SYMBOLS)
    if missing:
        return None, f"{path} lacks {', '.join(missing)}: it is older than this backend needs (CANN 9.1)"
    library.aclGetRecentErrMsg.restype = ct.c_char_p
    library.aclrtGetSocName.restype = ct.c_char_p
    return library, ""


def why_unavailable() -> str:
    """Why ACL cannot be used here, or "". Loads the library, calls nothing of it."""
    return _open(LIBRARY)[1]


def forget() -> None:
    """Look for the library again at the next use."""
    _open.cache_clear()


class Library:
    """The opened runtime. Thread-safe: the device that calls mean is the thread's, and set when it differs."""

    def __init__(self, driver: str) -> None:
        library, reason = _open(LIBRARY)
        if library is None:
            raise BackendUnavailable("the Ascend runtime cannot be used", [reason], INSTALL)
        self._library, self._driver = library, driver
        status = library.aclInit(None)
        if status not in (0, REPEATED_INIT):  # another component of the process may have initialised it
            self._fail("aclInit", status)

    def message(self) -> str:
        """The runtime's text about the last failure of this thread."""
        return (self._library.aclGetRecentErrMsg() or b"").decode("utf-8", "replace").strip()

    def _fail(self, function: str, status: int) -> None:
        remedy = REMEDIES.get(status, f"see the runtime's log; if it persists: {INSTALL}")
        text = self.message() or "the runtime gives no reason"
        raise DriverError(f"{self._driver}: {function}", str(status), f"{text}; {remedy}")

    def call(self, function: str, *args: Any) -> None:
        """Call `function`; DriverError unless it returns 0."""
        status = getattr(self._library, function)(*args)
        if status:
            self._fail(function, status)

    def text(self, function: str) -> str:
        """Result of a function that returns a string."""
        return (getattr(self._library, function)() or b"").decode("utf-8", "replace")

    def lacks(self, names: Sequence[str]) -> list[str]:
        """Which of `names` this runtime does not have."""
        return _missing(self._library, names)

    def enter(self, device: int) -> None:
        """Make `device` the one that this thread's later calls mean. Asked each time: torch_npu sets it as well."""
        current = ct.c_int32(-1)
        if self._library.aclrtGetDevice(ct.byref(current)) or current.value != device:
            self.call("aclrtSetDevice", ct.c_int32(device))

    def attribute(self, device: int, number: int, fallback: int) -> int:
        """A number of aclrtGetDeviceInfo, or `fallback` where the runtime does not know it."""
        out = ct.c_int64()
        status = self._library.aclrtGetDeviceInfo(ct.c_uint32(device), ct.c_int(number), ct.byref(out))
        return out.value if status == 0 and out.value > 0 else fallback
