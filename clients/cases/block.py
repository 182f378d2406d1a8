"""Locks as blocks, in a process that is forked, beside one that hangs, and on a machine that sleeps:
block.py SERVER CONTROL."""

import json
import os
import sys
import time
import traceback
import urllib.request

import holdfast

server, control = sys.argv[1:3]
client = holdfast.connect(server, secret="secret")

# A block whose lock was lost ends with Lost. One whose lock was released in it ends in order.
try:
    with client.lock("t/block", wait=0, ttl=2) as lock:
        step = json.dumps({"break": "t/block", "reason": "ticket 815"})
        urllib.request.urlopen(control, step.encode(), timeout=60).read()
        assert lock.lost.wait(20), "it was not lost"
except holdfast.Lost as e:
    assert "ticket 815" in str(e), e
else:
    raise AssertionError("the block ended in order, though its lock was lost")
with client.lock("t/block", wait=20) as lock:
    lock.release()

# A child does not hold the lock of its parent, nor release it. Its own locks have heartbeats.
lock = client.acquire("t/fork", wait=0, ttl=2)
child = os.fork()
if child == 0:
    try:
        lock.release()
        try:
            lock.check()
        except holdfast.Lost:
            pass
        else:
            raise AssertionError("the child holds the lock of its parent")
        with client.lock("t/fork/child", wait=0, ttl=1) as own:
            time.sleep(3)
            own.check()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0, "the child failed"
lock.check()
assert len(client.locks("t/fork")[0]["holders"]) == 1, "the child has released the lock of its parent"
lock.release()

# Heartbeats of one lock that hang cost no other its own.
slow = client.acquire("t/slow", wait=0, ttl=6)
quick = client.acquire("t/quick", wait=0, ttl=1)
ask = client._ask


def hang(method: str, path: str, body: object = None, timeout: float = 10) -> tuple:
    if isinstance(body, dict) and body.get("ids") == [slow.id]:
        time.sleep(timeout)
        raise OSError("no answer")
    return ask(method, path, body, timeout)


client._ask = hang
time.sleep(5)
quick.check()
for lock in (quick, slow):
    lock.release()

# While the machine sleeps its clock goes on and its timers do not. Soon after it wakes up a lock whose
# time is over is lost.
lock = client.acquire("t/asleep", wait=0, ttl=60)
time.sleep(0.5)
now = holdfast._now
holdfast._now = lambda: now() + 3600
assert lock.lost.wait(5), "five seconds after the machine woke up the lock is still held"
holdfast._now = now
