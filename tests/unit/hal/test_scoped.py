"""Choices inside `with` blocks: blocks left out of order, abandoned, left by another thread or task."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

import deepinfer
from deepinfer.hal.scoped import Scoped


def _lends() -> Iterator[None]:
    with deepinfer.use_backend("null"):
        yield
        yield


def _now() -> str:
    return deepinfer.current_device().backend


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    with deepinfer.use_backend("cpu"):
        yield


def test_an_abandoned_generator_gives_the_choice_back() -> None:
    lent = _lends()
    next(lent)
    assert _now() == "null"
    del lent
    gc.collect()
    assert _now() == "cpu"


def test_blocks_left_out_of_order_restore_what_is_still_open() -> None:
    lent = _lends()
    next(lent)
    with deepinfer.use_backend("cpu"):
        lent.close()
        assert _now() == "cpu"
    assert _now() == "cpu"


def test_a_block_left_by_another_thread_raises_nothing() -> None:
    lent, problems = _lends(), list[BaseException]()

    def close() -> None:
        try:
            lent.close()
        except BaseException as error:
            problems.append(error)

    def work() -> None:  # in a thread of its own, whose context ends with it
        next(lent)
        closer = threading.Thread(target=close)
        closer.start()
        closer.join()

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    assert not problems
    assert _now() == "cpu"


def test_tasks_keep_the_choice_they_started_with() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return _now()

    async def stream() -> AsyncIterator[int]:
        with deepinfer.use_backend("null"):
            yield 1

    async def main() -> tuple[list[str], list[object]]:
        unhandled: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        with deepinfer.use_backend("null"):
            first = asyncio.create_task(work())
        found = [await first, await asyncio.create_task(work())]
        abandoned = stream()
        await abandoned.__anext__()
        del abandoned
        gc.collect()
        for _ in range(3):
            await asyncio.sleep(0)
        return found, unhandled

    assert asyncio.run(main()) == (["null", "cpu"], [])


def test_an_error_leaves_every_block() -> None:
    choice = Scoped("test", 0)
    with pytest.raises(ZeroDivisionError), choice.using(1), choice.using(2):
        choice.get() / 0
    assert choice.get() == 0


def test_left_blocks_are_not_kept() -> None:
    """A thousand generators that end out of order leave no chain of old choices behind."""
    choice = Scoped("test", 0)
    for number in range(1000):
        first, second = choice.using(number), choice.using(-number)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)
    assert choice.get() == 0
    assert choice._innermost.get() is None
