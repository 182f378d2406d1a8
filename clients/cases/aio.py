"""The asyncio side of the Python client: aio.py SERVER."""

import asyncio
import sys

import holdfast


async def main() -> None:
    client = holdfast.connect(sys.argv[1], secret="secret")
    async with client.alock("t/aio", wait=0) as lock:
        lock.check()
        waiting = asyncio.ensure_future(client.alock("t/aio").__aenter__())
        while not client.locks("t/aio")[0]["waiters"]:
            await asyncio.sleep(0.05)
        waiting.cancel()
        try:
            await waiting
        except asyncio.CancelledError:
            pass
        else:
            raise AssertionError("a cancelled task has the lock")
        if client.locks("t/aio")[0]["waiters"]:
            raise AssertionError("a cancelled task stands in line")
    if client.locks("t/aio"):
        raise AssertionError("the lock is still held after its block")
    await asyncio.wait_for(many(client), 120)


async def many(client: holdfast.Client) -> None:
    """More tasks stand in line than there are threads for asyncio.to_thread."""
    inside = 0

    async def one() -> None:
        nonlocal inside
        async with client.alock("t/many"):
            inside += 1
            if inside > 1:
                raise AssertionError("two tasks are inside")
            await asyncio.sleep(0.01)
            inside -= 1

    await asyncio.gather(*(one() for _ in range(50)))


asyncio.run(main())
