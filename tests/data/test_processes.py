"""Processes that work for this one."""

import os
import subprocess
import sys
import time

import pytest

from srt_peft.data import processes
from srt_peft.errors import StateError


def twice(number):
    time.sleep(0.01 * (number % 3))
    return 2 * number


def die(_):
    os._exit(9)


def test_the_answers_come_in_the_order_of_the_calls_and_calls_are_made_as_they_are_needed():
    asked = []

    def calls():
        for number in range(40):
            asked.append(number)
            yield (number,)

    answers = processes.in_order(processes.pool(2), 2, twice, calls())
    assert next(answers) == 0
    assert len(asked) < 10
    assert list(answers) == [2 * number for number in range(1, 40)]


def test_a_process_that_is_gone_is_told():
    with pytest.raises(StateError, match=r"One of 2 processes was killed, probably for want of memory: run the same"):
        list(processes.in_order(processes.pool(2), 2, die, [(1,), (2,)]))


ALIVE = """
import time
from srt_peft.data import processes

def sleep(_):
    print("here", flush=True)
    time.sleep(60)

list(processes.in_order(processes.pool(2), 2, sleep, [(1,), (2,)]))
"""


def test_none_outlives_a_parent_that_was_killed():
    """They hold its output open: it ends when the last of them does."""
    process = subprocess.Popen([sys.executable, "-c", ALIVE], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline()
    assert process.stdout.readline()
    process.kill()
    process.communicate(timeout=30)
