"""What libraries print is collected, and threads that overlap leave the process's stream as it was."""

import sys
import threading

import pytest

from lit_gelu.export.runtime.session import captured_stdout


def test_it_collects(capsys):
    with captured_stdout() as said:
        sys.stdout.write("inside")
        with captured_stdout() as inner:  # the same thread may
            sys.stdout.write("within")
    sys.stdout.write("behind")
    assert (said.getvalue(), inner.getvalue(), capsys.readouterr().out) == ("inside", "within", "behind")


def test_two_threads_that_overlap():
    before, first_is_in, second_begins = sys.stdout, threading.Event(), threading.Event()

    def first():
        with captured_stdout():
            first_is_in.set()
            second_begins.wait(10)
            threading.Event().wait(0.1)  # without a lock the second is in by now, and ends last

    def second():
        first_is_in.wait(10)
        second_begins.set()
        with captured_stdout():
            threading.Event().wait(0.3)

    threads = [threading.Thread(target=run) for run in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sys.stdout is before


def test_an_error_puts_it_back():
    before = sys.stdout

    def fails():
        with captured_stdout():
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        fails()
    assert sys.stdout is before
