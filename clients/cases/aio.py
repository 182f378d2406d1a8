"""The asyncio side of the Python client: aio.py SERVER."""

import asyncio
import sys

import holdfast


async def main() -> None:
    client = holdfast.connect(sys.argv[1], token="secret")
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


asyncio.run(main())
