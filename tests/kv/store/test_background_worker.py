"""The worker: one piece after the other, no more than asked for, and nothing is waited for in vain."""

from threading import Event, Thread
from typing import Any

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
    closing.join(300)
    assert first.result(300) is True
    again = worker.submit(4, lambda: None)
    assert again is not None and again.result(300) is None
    worker.close()
