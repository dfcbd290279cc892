"""`DriverDevice` over a driver: what it must wait for."""

from __future__ import annotations

import gc
from types import ModuleType
from typing import Any

from deepinfer.hal.cabi import CDriver
from deepinfer.hal.driver_device import DriverDevice


class Listening:
    """The example driver, with a list of the streams that were waited for."""

    def __init__(self, inner: CDriver) -> None:
        self.inner, self.waited = inner, []

    def stream_synchronize(self, ctx: int, stream: int) -> None:
        self.waited.append(stream)
        self.inner.stream_synchronize(ctx, stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_synchronize_waits_for_every_stream_in_use(example_plugin: ModuleType) -> None:
    driver = Listening(CDriver(example_plugin.BUILD / "libexample_c_driver.so"))
    device = DriverDevice("example_c", driver, "", 0)
    first, second = device.new_stream(), device.new_stream()
    device.synchronize()
    assert sorted(driver.waited) == sorted([0, first.handle, second.handle])
    del second
    gc.collect()
    driver.waited.clear()
    device.synchronize()
    assert driver.waited == [0, first.handle]
    device.close()
