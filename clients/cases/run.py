"""Runs the cases of cases.json with the Python client: run.py CASES SERVER CONTROL."""

import json
import sys
import threading
import time
import urllib.error
import urllib.request

import holdfast


def main() -> int:
    cases, server, control = sys.argv[1:4]
    failed = 0
    for case in json.load(open(cases, encoding="utf-8")):
        try:
            run(case["steps"], holdfast.connect(server, secret="secret"), control)
            print("ok", case["name"], flush=True)
        except Exception as e:  # noqa: BLE001: of any kind
            failed += 1
            print("not ok", case["name"], "--", type(e).__name__, e, flush=True)
        finally:
            ask(control, {"clear": True, "release all": True})
    return 1 if failed else 0


def ask(control: str, step: dict) -> None:
    request = urllib.request.Request(control, json.dumps(step).encode(), {"Content-Type": "application/json"})
    try:
        urllib.request.urlopen(request, timeout=60).read()
    except urllib.error.HTTPError as e:
        raise AssertionError(e.read().decode()) from None


def run(steps: list, client: holdfast.Client, control: str) -> None:
    held: dict = {}
    threads: dict = {}
    for step in steps:
        op, name = step["op"], step.get("as", "")
        options = {k: step[k] for k in ("wait", "ttl", "shared", "reason", "labels") if k in step}
        if op == "test":
            ask(control, step)
        elif op == "sleep":
            time.sleep(step["seconds"])
        elif op == "acquire":
            try:
                held[name] = client.acquire(*step["names"], **options)
            except holdfast.HoldfastError as e:
                assert type(e).__name__ == step.get("fails"), f"acquire fails with {type(e).__name__}: {e}"
            else:
                assert "fails" not in step, f"acquired, want {step.get('fails')}"
        elif op == "start":
            def acquire(name=name, names=step["names"], options=options) -> None:
                try:
                    held[name] = client.acquire(*names, **options)
                except Exception as e:  # noqa: BLE001
                    held[name] = e
            threads[name] = threading.Thread(target=acquire, daemon=True)
            threads[name].start()
        elif op == "join":
            threads[name].join(40)
            assert isinstance(held.get(name), holdfast.Lock), f"{name} got {held.get(name)!r}"
        elif op == "held":
            held[name].check()
        elif op == "release":
            held[name].release()
        elif op == "larger":
            assert held[name].token > held[step["than"]].token, "tokens do not grow"
        elif op == "lost":
            assert held[name].lost.wait(step["within"]), "not lost in time"
            assert step.get("says", "") in held[name].why, f"lost with {held[name].why!r}"
            try:
                held[name].check()
            except holdfast.Lost:
                pass
            else:
                raise AssertionError("check says that it is held")
        else:
            raise AssertionError(f"unknown step {op}")


sys.exit(main())
