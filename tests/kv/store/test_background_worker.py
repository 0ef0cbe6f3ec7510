"""The worker: one piece after the other, no more than asked for, and nothing is waited for in vain."""

import subprocess
import sys
from threading import Event, Thread
from typing import Any

import pytest

from pltz.kv.store.background_worker import BackgroundWorker

MOST = 64


def test_what_comes_when_too_many_wait_is_refused() -> None:
    worker, go = BackgroundWorker[Any]("test", MOST), Event()
    waiting = [worker.submit(n, lambda: go.wait(60)) for n in range(MOST)]
    assert worker.submit("more", lambda: None) is None and worker.submit(3, lambda: None) is waiting[3]
    go.set()
    worker.close()
    assert waiting[0] is not None and waiting[0].done()
    worker.close()


def test_a_process_that_ends_waits_for_one_piece_only() -> None:
    text = """
import sys, time
from pltz.kv.store.background_worker import BackgroundWorker
worker = BackgroundWorker("test", 64)
def work(n):
    time.sleep(0.1)
    print(n, flush=True)
for n in range(20):
    worker.submit(n, lambda n=n: work(n))
time.sleep(0.15)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True)
    assert 1 <= len(done.stdout.split()) < 20 and not done.stderr


def test_a_worker_that_is_closed_cancels_what_waits_and_can_be_used_again() -> None:
    worker, go = BackgroundWorker[Any]("test", MOST), Event()
    began = Event()

    def patient() -> Any:
        began.set()
        return go.wait(60)

    first, second = worker.submit(1, patient), worker.submit(2, patient)
    assert first is not None and second is not None and began.wait(60)
    second.add_done_callback(lambda _: worker.submit(3, lambda: None))
    closing = Thread(target=worker.close)
    closing.start()
    while not second.done():
        pass
    assert second.cancelled() and not first.done()
    go.set()
    closing.join(60)
    assert first.result(60) is True
    again = worker.submit(4, lambda: None)
    assert again is not None and again.result(60) is None
    worker.close()


def test_a_failure_of_the_work_belongs_to_those_who_wait() -> None:
    worker = BackgroundWorker[Any]("test", MOST)
    failed = worker.submit(1, lambda: 1 // 0)
    assert failed is not None
    with pytest.raises(ZeroDivisionError):
        failed.result(60)
    after = worker.submit(1, lambda: None)
    assert after is not None and after is not failed and after.result(60) is None
    worker.close()


def test_draining_waits_for_what_came_and_for_what_that_asked_for() -> None:
    worker, done = BackgroundWorker[Any]("test", MOST), list[int]()
    worker.drain()

    def work(number: int) -> None:
        if number < 3:
            worker.submit(number + 1, lambda: work(number + 1))
        done.append(number)

    worker.submit(0, lambda: work(0))
    worker.drain()
    assert done == [0, 1, 2, 3]
    worker.close()
