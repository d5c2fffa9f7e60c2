"""One thread that works off streams, one after the other, while its owner does something else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class BackgroundThread:
    """Streams are generators; each is begun, worked off and closed in the thread."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._stopping = threading.Event()

    def collect(self, stream: Callable[[], Iterator[T]], finish: Callable[[list[T]], R]) -> Future[R]:
        """`finish` of all that a stream gives. Cancelled if the thread is stopped before the end."""
        collected: list[T] = []

        def work() -> R:
            self._work_off(stream, collected.append, self._stopping)
            return finish(collected)

        return self._thread.submit(work)

    async def follow(self, stream: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
        """What a stream gives, as it comes. Leaving early ends the stream at its next item."""
        loop = asyncio.get_running_loop()
        items: asyncio.Queue[T | None] = asyncio.Queue()  # None: the stream has ended
        left = threading.Event()

        def put(item: T | None) -> None:
            loop.call_soon_threadsafe(items.put_nowait, item)

        def work() -> None:
            try:
                self._work_off(stream, put, self._stopping, left)
            finally:
                if not left.is_set():
                    put(None)

        future = self._thread.submit(work)
        try:
            while (item := await items.get()) is not None:
                yield item
            await asyncio.wrap_future(future)
        finally:
            left.set()
            future.cancel()

    def stop(self) -> None:
        """Ends what is being worked off at its next item, cancels what waits, and the thread."""
        self._stopping.set()
        self._thread.shutdown(wait=True, cancel_futures=True)

    @staticmethod
    def _work_off(
        stream: Callable[[], Iterator[T]], take: Callable[[T], None], *ends: threading.Event
    ) -> None:
        with closing(stream()) as items:  # type: ignore[type-var]
            for item in items:
                if any(end.is_set() for end in ends):
                    raise CancelledError
                take(item)
