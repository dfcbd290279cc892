"""Memory of other devices and processes through ACL: the driver extension "ascend950.acl.peer.v1".

Never run on hardware. By the vendor's documentation access is one-way and per device (`aclrtDeviceEnablePeerAccess`),
and memory of another process is imported by a key (`aclrtIpcMem*`); whoever imports closes before the owner does.
"""

from __future__ import annotations

import ctypes as ct

from deepinfer.errors import UnsupportedError, invalid
from deepinfer_ascend950.drivers.acl_library import PEER_SYMBOLS, Library

EXTENSION = "ascend950.acl.peer.v1"
KEY_BYTES = 65
EXPORT_WITHOUT_PID_CHECK, IMPORT_ENABLES_PEER_ACCESS = 0x1, 0x1


class Peers:
    """Peer access of one runtime; devices are named by their index."""

    def __init__(self, library: Library, driver: str) -> None:
        self._library, self._driver = library, driver
        self._enabled: set[tuple[int, int]] = set()

    def reaches(self, device: int, other: int) -> bool:
        """Whether `device` can be given access to the memory of `other`."""
        if device == other:
            return True
        can = ct.c_int32()
        self._library.call("aclrtDeviceCanAccessPeer", ct.byref(can), ct.c_int32(device), ct.c_int32(other))
        return bool(can.value)

    def enable(self, device: int, other: int) -> None:
        """Let `device` reach the memory of `other`; repeating does nothing.

        Raises:
            UnsupportedError: the two are not connected.
        """
        if device == other or (device, other) in self._enabled:
            return
        if not self.reaches(device, other):
            raise UnsupportedError(
                f"{self._driver}: device {device} cannot reach the memory of device {other}",
                ["aclrtDeviceCanAccessPeer says no: they are not joined by a link (`npu-smi info -t topo` shows them)"],
            )
        self._library.enter(device)
        self._library.call("aclrtDeviceEnablePeerAccess", ct.c_int32(other), ct.c_uint32(0))
        self._enabled.add((device, other))

    def export(self, device: int, address: int, nbytes: int) -> bytes:
        """A key by which another process imports `nbytes` bytes at `address`, which must outlive every import."""
        if nbytes < 1:
            raise invalid("nbytes", nbytes, "must be positive", nearest=1)
        self._library.enter(device)
        key = ct.create_string_buffer(KEY_BYTES)
        self._library.call(
            "aclrtIpcMemGetExportKey",
            ct.c_void_p(address),
            ct.c_size_t(nbytes),
            key,
            ct.c_size_t(KEY_BYTES),
            ct.c_uint64(EXPORT_WITHOUT_PID_CHECK),
        )
        return key.value

    def open(self, device: int, key: bytes) -> int:
        """Address at which `device` sees the memory another process exported as `key`."""
        self._check(key)
        self._library.enter(device)
        out = ct.c_void_p()
        flags = ct.c_uint64(IMPORT_ENABLES_PEER_ACCESS)
        self._library.call("aclrtIpcMemImportByKey", ct.byref(out), ct.c_char_p(key), flags)
        return out.value or 0

    def close(self, device: int, key: bytes) -> None:
        """End an import, or (after all imports) an export."""
        self._check(key)
        self._library.enter(device)
        self._library.call("aclrtIpcMemClose", ct.c_char_p(key))

    @staticmethod
    def _check(key: bytes) -> None:
        if not 0 < len(key) < KEY_BYTES or b"\0" in key:
            raise invalid("key", key, f"must be what export() returned: 1 to {KEY_BYTES - 1} bytes without a zero")


def peers(library: Library, driver: str) -> Peers | None:
    """The extension, or None where the runtime lacks its functions."""
    return None if library.lacks(PEER_SYMBOLS) else Peers(library, driver)
