"""Counts in a file, under a lock: count.py SERVER FILE TIMES. Prints when it held the lock."""

import contextlib
import sys
import time

import holdfast

server, file, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
client = holdfast.connect(server)
done = 0
while done < times:
    with contextlib.suppress(holdfast.Lost), client.lock("counter", ttl=3) as lock:
        began = time.clock_gettime(time.CLOCK_MONOTONIC)
        try:
            with open(file, encoding="utf-8") as f:
                n = int(f.read())
            time.sleep(0.002)
            lock.check()
            with open(file, "w", encoding="utf-8") as f:
                f.write(str(n + 1))
            done += 1
        finally:
            print(lock.token, began, time.clock_gettime(time.CLOCK_MONOTONIC), flush=True)
