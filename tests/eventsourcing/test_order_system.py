"""The order system in many processes that are killed at random: every payment is there once, in every aggregate and
view."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

from fix_covered import EXHAUSTIVE

import streamkit
from harness.order_system import ORDERS, Account, Order, booking, open_view
from streamkit.eventsourcing import Repository

PROCESSES = 8 if EXHAUSTIVE else 4
PAYMENTS = 150 if EXHAUSTIVE else 20
KILLS = 60 if EXHAUSTIVE else 6
TESTS = str(Path(__file__).parents[1])


def test_sums_agree_however_processes_die(tmp_path: Path) -> None:
    url, id, dice = f"file://{tmp_path}/stores", uuid4(), random.Random(1)

    def start(name: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "harness.order_system", url, str(id), str(name), str(PAYMENTS)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    processes = {name: start(name) for name in range(PROCESSES)}
    try:
        for _ in range(KILLS):
            time.sleep(0.2 + dice.random() * 0.5)  # processes of their own run by the wall clock
            name = dice.randrange(PROCESSES)
            processes[name].kill()
            processes[name].communicate()
            processes[name] = start(name)  # and does all that it did again
        for process in processes.values():
            out, err = process.communicate(timeout=300)
            assert out == "done\n", err[-2000:]
    finally:
        for process in processes.values():
            process.kill()
    with streamkit.connect(url) as client:
        store = client.store(id)
        wanted = PROCESSES * PAYMENTS * 3
        orders = [Repository(store, "orders", Order).load(f"order-{at}") for at in range(ORDERS)]
        assert sum(order.paid for order in orders) == wanted
        for order in orders:
            fast = Repository(store, "orders", Order, snapshot_every=7).load(order.id)
            assert (fast.paid, fast.payments) == (order.paid, order.payments)
        with open_view(store, url) as view, store.route("audit", "orders", "audit") as route:
            view.catch_up()
            assert view.get() == {order.id: order.paid for order in orders if order.paid}
            route.catch_up()
        manager = booking(store)
        manager.run(seconds=1.2)  # longer than the deadline of a killed consumer
        assert (manager.catch_up().failed, manager.status().lag, manager.status().pending) == (0, 0, 0)
        accounts = Repository(store, "accounts", Account)
        assert {order.id: accounts.load(order.id).booked for order in orders} == {o.id: o.paid for o in orders}
        for order in orders:
            there = [entry.payload for entry in store.consume_segment("audit", order.id)]
            assert there == [entry.payload for entry in store.consume_segment("orders", order.id)]
        assert store.verify().ok
