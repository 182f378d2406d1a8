"""Locks of a `holdfast serve`: first come, first served, across languages and hosts.

    client = holdfast.connect()                     # HOLDFAST_URL, or this user's socket
    with client.lock("nightly", wait=600, reason="backup") as lock:
        backup(token=lock.token)                    # lock.lost is an Event; lock.check() raises Lost

A hold is kept by heartbeats, which one thread sends for all holds of a client. The client counts
by its own clock how long it may believe in a hold: when that time is over without an answered
heartbeat, the hold is lost, `lock.lost` is set and `on_lost` is called, before anybody else can
hold the lock. What a frozen process writes when it wakes up only a fence can stop: hand
`lock.token` to `holdfast_fence(name, token)` in the same transaction.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import getpass
import http.client
import json
import os
import random
import secrets
import socket
import ssl
import sys
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import Any, AsyncIterator, Callable, Iterator, Sequence
from urllib.parse import quote, urlsplit

__all__ = ["connect", "Client", "Lock", "HoldfastError", "Held", "Lost", "Refused", "Unavailable"]
__version__ = "0.1.0"


class HoldfastError(Exception):
    """Any error of this module."""


class Held(HoldfastError):
    """Others hold the lock, and it was not to be waited for, or not for longer."""

    def __init__(self, message: str, holders: Sequence[dict[str, Any]] = (), waiting: int = 0):
        super().__init__(message)
        self.holders, self.waiting = holders, waiting


class Lost(HoldfastError):
    """The hold is over: its heartbeats were not answered in time, or it was broken."""


class Refused(HoldfastError):
    """The server refuses the request: it is wrong, or not allowed. `status` is that of HTTP."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


class Unavailable(HoldfastError):
    """No server answered in time. If a lock was asked for it is given back, or ends by itself."""


def _after_too_many() -> float:
    """Seconds after which to ask a server again that was asked too often."""
    return random.uniform(0.5, 1.5)


def _now() -> float:
    """Seconds by a clock that does not step and goes on while the machine sleeps."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(boot) if boot is not None else max(time.monotonic(), time.time() - _epoch)


_epoch = time.time() - time.monotonic()


@dataclass
class Lock:
    """A lock that is held. It is released by the `with` that made it, or by `release()`. It is that
    of the process that took it: one that is forked from it does not hold the lock, nor release it."""

    client: "Client" = field(repr=False)
    id: str = field(repr=False)
    names: tuple[str, ...]
    tokens: dict[str, int]  # a fencing token for each name, larger than all earlier ones of the name
    ttl: float
    lost: threading.Event = field(default_factory=threading.Event, repr=False)
    why: str = ""  # it was lost
    _deadline: float = field(default=0.0, repr=False)
    _on_lost: Callable[["Lock"], None] | None = field(default=None, repr=False)
    _done: bool = field(default=False, repr=False)

    @property
    def token(self) -> int:
        """The fencing token of the lock, or of the first of its names."""
        return self.tokens[self.names[0]]

    def check(self) -> None:
        """Raise Lost unless the lock is held. It reads the clock itself."""
        if not self._done and _now() >= self._deadline:
            self.client._lose(self, "no heartbeat was answered in time")
        if self.lost.is_set():
            raise Lost(f"{', '.join(self.names)}: {self.why}")
        if self._done:
            raise HoldfastError(f"{', '.join(self.names)}: has been released")

    def _check_kept(self) -> None:
        """check, but for a lock that was released in order."""
        if not self._done or self.lost.is_set():
            self.check()

    @property
    def remaining(self) -> float:
        """Seconds for which the lock may be believed in without another heartbeat."""
        return max(0.0, self._deadline - _now())

    def release(self) -> None:
        """Give the lock back. Again, or after a loss, it does nothing."""
        self.client._release(self)


def connect(url: str | None = None, *, secret: str | None = None, cafile: str | None = None) -> "Client":
    """A client of the server at url, or HOLDFAST_URL: http://HOST:PORT, https://HOST:PORT or
    unix:PATH. Without either it is the socket of this user's server. The secret, or HOLDFAST_SECRET, is sent
    as a bearer token."""
    url = url or os.environ.get("HOLDFAST_URL") or "unix:" + _own_socket()
    return Client(url, secret or os.environ.get("HOLDFAST_SECRET"), cafile)


def _own_socket() -> str:
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    if os.path.isdir(runtime):
        return os.path.join(runtime, "holdfast", "serve.sock")
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "holdfast", "serve.sock")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float):
        super().__init__("holdfast", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Client:
    """A client of one server. It may be used by any number of threads; one per process is best,
    because one thread sends the heartbeats of all its locks, together."""

    def __init__(self, url: str, secret: str | None = None, cafile: str | None = None):
        at = urlsplit(url)
        if at.scheme not in ("http", "https", "unix"):
            raise ValueError(f"a server is http://HOST:PORT, https://HOST:PORT or unix:PATH, not {url!r}")
        self._at, self._prefix = at, "" if at.scheme == "unix" else at.path.rstrip("/")
        self._headers = {"Accept": "application/json"}
        if secret:
            self._headers["Authorization"] = "Bearer " + secret
        elif at.username:
            pair = f"{at.username}:{at.password or ''}".encode()
            self._headers["Authorization"] = "Basic " + base64.b64encode(pair).decode()
        self._tls = ssl.create_default_context(cafile=cafile) if at.scheme == "https" else None
        self._idle: list[http.client.HTTPConnection] = []
        self._locks: dict[str, Lock] = {}
        self._changed = threading.Condition()
        self._beating: threading.Thread | None = None
        _clients.add(self)

    # Locks.

    @contextlib.contextmanager
    def lock(self, *names: str, **options: Any) -> Iterator[Lock]:
        """Hold a lock, or several all at once, for the time of a `with`. The options are those
        of acquire. If the lock was lost meanwhile, the `with` ends with Lost, unless it ends with
        another exception."""
        lock = self.acquire(*names, **options)
        try:
            yield lock
            lock._check_kept()
        finally:
            lock.release()

    @contextlib.asynccontextmanager
    async def alock(self, *names: str, **options: Any) -> AsyncIterator[Lock]:
        """lock for asyncio. Cancelling the task while it waits gives up the place in line before the
        cancellation is raised, which takes up to 13 seconds if the server is silent."""
        stop = _Stop()
        taking = asyncio.ensure_future(_in_thread(lambda: self.acquire(*names, _stop=stop, **options)))
        try:
            lock = await asyncio.shield(taking)
        except asyncio.CancelledError:
            stop.set()
            with contextlib.suppress(HoldfastError):
                await asyncio.shield(_in_thread((await taking).release))
            raise
        try:
            yield lock
            lock._check_kept()
        finally:
            await asyncio.shield(_in_thread(lock.release))

    def acquire(
        self,
        *names: str,
        wait: float | None = None,
        shared: bool = False,
        slots: int = 0,
        ttl: float = 0,
        reason: str = "",
        labels: dict[str, str] | None = None,
        on_lost: Callable[[Lock], None] | None = None,
        _stop: _Stop | None = None,
    ) -> Lock:
        """Take a lock, or several all at once, and keep it until release().

        wait is how many seconds to stand in line for it; None: for as long as it takes; 0: not at
        all. shared is together with other shared holders, slots=N with at most N. ttl is how long
        the server may hear nothing of this client before others take over; 0: the store's setting.
        reason and labels are shown with the lock. on_lost is called from another thread when the lock
        is lost. Errors: Held, Refused, Unavailable; Lost if the waiting request was broken.
        """
        if not names:
            raise ValueError("a lock needs a name")
        body: dict[str, Any] = {"names": list(names), "on_close": "lapse", "owner": self._owner()}
        for key, value in (("shared", shared), ("slots", slots), ("ttl", ttl), ("reason", reason), ("labels", labels)):
            if value:
                body[key] = value
        end = None if wait is None else _now() + wait
        taking = _Taking(self, names, body, end, _stop)
        lock = taking.take()
        lock._on_lost = on_lost
        with self._changed:
            self._locks[lock.id] = lock
            if self._beating is None:
                self._beating = threading.Thread(target=self._beat, name="holdfast", daemon=True)
                self._beating.start()
            self._changed.notify_all()
        return lock

    @staticmethod
    def _owner() -> dict[str, Any]:
        owner: dict[str, Any] = {"host": socket.gethostname()[:255], "pid": os.getpid(), "program": os.path.basename(sys.argv[0] or "python")[:255]}
        with contextlib.suppress(Exception):  # there may be no name
            owner["user"] = getpass.getuser()[:255]
        return owner

    def locks(self, prefix: str = "") -> list[dict[str, Any]]:
        """What is held and waited for, of all names that begin with prefix and may be looked at."""
        found: list[dict[str, Any]] = []
        after = ""
        while True:
            try:
                status, answer = self._ask("GET", f"/v1/locks?limit=1000&prefix={quote(prefix, safe='')}&after={quote(after, safe='')}")
            except OSError as e:
                raise Unavailable(f"{self._at.geturl()}: {e}") from e
            if status != 200:
                raise _error(status, answer)
            found += answer["locks"]
            after = answer.get("after", "")
            if not after:
                return found

    # Heartbeats.

    def _beat(self) -> None:
        due: dict[str, float] = {}
        while True:
            with self._changed:
                now = _now()
                for lock in list(self._locks.values()):
                    if now >= lock._deadline:
                        self._lose(lock, "no heartbeat was answered in time")
                due = {i: due.get(i, self._first(lock)) for i, lock in self._locks.items()}
                ready = [lock for i, lock in self._locks.items() if due[i] <= now][:1000]
                if not ready:
                    ends = [min(due[i], lock._deadline) for i, lock in self._locks.items()]
                    # A wait stands still while the machine sleeps, so it is a second at most.
                    self._changed.wait(max(0.005, min(1.0, min(ends) - now)) if ends else None)
                    continue
                # A request that hangs is to cost no lock, neither these nor those that are due meanwhile.
                again = min(min(lock.remaining for lock in self._locks.values()) / 2, min(lock.ttl for lock in ready) / 3, 5)
            try:
                status, answer = self._ask("POST", "/v1/beats", {"ids": [lock.id for lock in ready]}, timeout=max(again, 0.05))
            except Exception:  # noqa: BLE001: whatever it is, this thread must go on
                status, answer = 503, {}
            answers = answer.get("holds", ()) if status == 200 else ()
            for n, lock in enumerate(ready):
                one = answers[n] if n < len(answers) else {}
                if one.get("status") == 200 and one.get("state") == "held":
                    lock._deadline = max(lock._deadline, now + one.get("valid", 0)) if not lock._done else 0
                    lock.ttl = one.get("ttl", lock.ttl)
                    due[lock.id] = now + lock.ttl / 3
                elif one.get("status") in (410, 422, 403) or one.get("state") == "waiting":
                    self._lose(lock, one.get("detail") or one.get("title") or "the server does not know it any more")
                else:
                    due[lock.id] = _now() + 0.1

    @staticmethod
    def _first(lock: Lock) -> float:
        """When to beat first: at once if less than half a TTL is left, as after a long wait."""
        left = lock.remaining
        return _now() if left < lock.ttl / 2 else _now() + min(lock.ttl / 3, left - lock.ttl / 2)

    def _lose(self, lock: Lock, why: str) -> None:
        with self._changed:
            if lock._done:
                return
            lock._done, lock.why = True, why
            self._locks.pop(lock.id, None)
            lock.lost.set()
        with contextlib.suppress(RuntimeError):  # there can be no more threads
            if lock._on_lost:
                threading.Thread(target=lock._on_lost, args=(lock,), daemon=True).start()
            threading.Thread(target=self._give_back, args=(lock.id, 5.0), daemon=True).start()

    def _forked(self) -> None:
        """In a process that was forked: connections, heartbeats and locks are those of its parent."""
        self._idle, self._beating, self._changed = [], None, threading.Condition()
        locks, self._locks = self._locks, {}
        for lock in locks.values():
            lock._done, lock.why = True, "it is held by the process from which this one was forked"
            lock.lost = threading.Event()
            lock.lost.set()

    def _release(self, lock: Lock) -> None:
        with self._changed:
            if lock._done:
                return
            lock._done = True
            self._locks.pop(lock.id, None)
        self._give_back(lock.id, 10.0)

    def _give_back(self, hold: str, patience: float) -> None:
        """Send DELETE until it is answered. What is not given back ends by itself after its TTL."""
        end = _now() + patience
        while _now() < end:
            with contextlib.suppress(OSError):
                status, _ = self._ask("DELETE", f"/v1/holds/{hold}", timeout=2)
                if status == 429:
                    time.sleep(_after_too_many())
                elif status < 500:
                    return
            time.sleep(0.1)

    # HTTP.

    def _open(self, timeout: float) -> http.client.HTTPConnection:
        at = self._at
        if at.scheme == "unix":
            return _UnixConnection(at.path, timeout)
        if self._tls:
            return http.client.HTTPSConnection(at.hostname or "localhost", at.port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(at.hostname or "localhost", at.port, timeout=timeout)

    def _ask(self, method: str, path: str, body: Any = None, timeout: float = 10) -> tuple[int, Any]:
        """One request. OSError: its outcome is unknown. All requests may be sent again."""
        try:
            c, kept = self._idle.pop(), True
            if c.sock:
                c.sock.settimeout(timeout)
        except IndexError:
            c, kept = self._open(timeout), False
        try:
            status, answer = self._send(c, method, path, body)
            text = answer.read()
        except (OSError, http.client.HTTPException) as e:
            c.close()
            if kept and not isinstance(e, TimeoutError):  # the server has closed it meanwhile
                return self._ask(method, path, body, timeout)
            raise OSError(str(e)) from e
        if answer.will_close:
            c.close()
        elif len(self._idle) < 8:
            self._idle.append(c)
        return status, _parse(text)

    def _send(self, c: http.client.HTTPConnection, method: str, path: str, body: Any, accept: str | None = None) -> tuple[int, http.client.HTTPResponse]:
        headers = dict(self._headers)
        if accept:
            headers["Accept"] = accept
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        c.request(method, self._prefix + path, data, headers)
        answer = c.getresponse()
        return answer.status, answer


def _parse(text: bytes) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return {}  # of a proxy, or there is none
    return value if isinstance(value, dict) else {}


async def _in_thread(work: Callable[[], Any]) -> Any:
    """What work returns, in a thread of its own. Those of asyncio.to_thread are few: tasks that stand in
    line would take all of them, and the one that holds the lock could not release it."""
    loop = asyncio.get_running_loop()
    result = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if result.cancelled():
            return
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    def run() -> None:
        try:
            value, error = work(), None
        except BaseException as e:  # noqa: BLE001: of any kind
            value, error = None, e
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name="holdfast-task", daemon=True).start()
    return await result


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _error(status: int, answer: Any) -> HoldfastError:
    text = answer.get("detail") or answer.get("title") or f"status {status}"
    if status == 409:
        return Held(text, answer.get("holders", ()), answer.get("waiting", 0))
    if status == 410:
        return Lost(text)
    return Unavailable(text) if status >= 500 or status == 429 else Refused(text, status)


class _Stop:
    """Ends an acquire that waits, from another thread."""

    def __init__(self) -> None:
        self._over, self._connection = threading.Event(), None

    def set(self) -> None:
        self._over.set()
        c: http.client.HTTPConnection | None = self._connection
        if c is not None and c.sock is not None:
            with contextlib.suppress(OSError):
                c.sock.shutdown(socket.SHUT_RDWR)

    def is_set(self) -> bool:
        return self._over.is_set()

    def watch(self, c: http.client.HTTPConnection) -> None:
        self._connection = c


class _Taking:
    """One acquire: asks, waits in line, and goes on at another replica when one is silent."""

    def __init__(self, client: Client, names: Sequence[str], body: dict[str, Any], end: float | None, stop: _Stop | None):
        self.client, self.names, self.body, self.end, self.stop = client, names, body, end, stop
        self.patience = 10.0  # of a server that does not answer at all
        self.ttl = body.get("ttl") or 15.0
        self.failing: float | None = None  # since when nothing was answered

    def take(self) -> Lock:
        hold = secrets.token_hex(16)
        asked = False  # it stands in line already, or may
        try:
            while True:
                if self.stop and self.stop.is_set():
                    raise Unavailable("given up")
                left = None if self.end is None else self.end - _now()
                try:
                    sent = _now()
                    if not asked:
                        status, answer = self.client._ask("PUT", f"/v1/holds/{hold}", self.body, timeout=6)
                        if status == 409 and (left is None or left > 0):
                            asked, self.failing = True, None
                            continue
                    else:
                        status, answer = self._wait(hold, left)
                        sent = _now()
                        if status == 200:  # what counts is a heartbeat of our own
                            status, answer = self.client._ask("POST", "/v1/beats", {"ids": [hold]}, timeout=5)
                            if status == 200:
                                answer = (answer.get("holds") or [{"status": 503}])[0]
                                status = answer["status"]
                except OSError as e:
                    status, answer = 503, {"detail": f"{self.client._at.geturl()}: {e}"}
                if status in (200, 202) and "state" not in answer:
                    status, answer = 503, {"detail": f"{self.client._at.geturl()}: what answers is not a holdfast server"}
                if status == 200 and answer.get("state") == "held" and answer.get("valid", 0) > _now() - sent:
                    tokens = {one["name"]: one["token"] for one in answer["locks"]}
                    return Lock(self.client, hold, tuple(self.names), tokens, answer["ttl"], _deadline=sent + answer["valid"])
                if status == 410 and asked:  # its place has lapsed, or was broken: at the end of the line
                    if answer.get("why") == "broken":
                        raise _error(status, answer)
                    hold, self.failing = secrets.token_hex(16), None
                    continue
                if status < 500 and status not in (200, 202, 429):
                    raise _error(status, answer)
                self.failing = (self.failing or _now()) if status >= 500 else None
                if self.failing and _now() - self.failing > max(self.patience, self.ttl) or (left is not None and left < -self.patience):
                    raise _error(status, answer)
                if status == 429:
                    time.sleep(_after_too_many())
                elif status >= 500:
                    time.sleep(0.1)
        except BaseException as e:
            if self.stop and self.stop.is_set():  # a thread of its own: the task that was cancelled waits for it
                self.client._give_back(hold, 5.0)
            elif not isinstance(e, (Held, Refused)):
                threading.Thread(target=self.client._give_back, args=(hold, 5.0), daemon=True).start()
            raise

    def _wait(self, hold: str, left: float | None) -> tuple[int, Any]:
        """Stand in line by a stream, in which something comes each third of a TTL. Half a TTL of
        silence is an OSError: the same request again, on a new connection, keeps the place."""
        body = dict(self.body, wait=1e6 if left is None else max(left, 0.001))
        c = self.client._open(timeout=6)
        try:
            if self.stop:
                self.stop.watch(c)
            status, answer = self.client._send(c, "PUT", f"/v1/holds/{hold}", body, "application/x-ndjson")
            if status != 200:
                return status, _parse(answer.read())
            while True:
                if c.sock:
                    c.sock.settimeout(max(self.ttl / 2, 0.5))
                line = answer.readline()
                if not line:
                    raise OSError("the connection ended")
                event, self.failing = _parse(line), None
                self.ttl = event.get("ttl", self.ttl)
                kind = event.get("event")
                if kind in ("held", "kept"):
                    return 200, event
                if kind in ("refused", "lost"):
                    return event.get("status", 410), event
                if kind == "again":
                    raise OSError(event.get("detail", "the server ends"))
                if self.stop and self.stop.is_set():
                    raise OSError("given up")
        except http.client.HTTPException as e:
            raise OSError(str(e)) from e
        finally:
            c.close()
