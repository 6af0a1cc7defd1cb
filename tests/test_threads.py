"""Slots: who runs first, and how many at once."""

from __future__ import annotations

import time
from threading import Event, Lock, Thread

from flatmin.core.threads import Slots


def test_those_in_front_take_slots_first():
    """One behind gets its place between those in front only when they have nothing left."""
    slots, order, begun = Slots(1), [], Event()
    slots.MOMENT = 0.5  # a busy machine may be long between two pieces

    def front():
        for _ in range(20):
            with slots.front():
                begun.set()
                order.append("front")
                time.sleep(0.001)

    def behind():
        begun.wait()
        with slots.behind():
            order.append("behind")

    threads = [Thread(target=one) for one in (front, behind)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
        assert not thread.is_alive()
    assert order == ["front"] * 20 + ["behind"]


def test_no_more_run_at_once_than_there_are_slots():
    slots, running, most = Slots(2), [0], [0]
    lock = Lock()

    def work(slot):
        for _ in range(10):
            with slot():
                with lock:
                    running[0] += 1
                    most[0] = max(most[0], running[0])
                time.sleep(0.001)
                with lock:
                    running[0] -= 1

    threads = [Thread(target=work, args=[slot]) for slot in (slots.front, slots.behind) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
        assert not thread.is_alive()
    assert most[0] == 2
