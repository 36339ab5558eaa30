"""The first failure of a rank ends all ranks, is reported once, and by a rank that still lives."""

import json
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeAlias

import pytest
import torch

from wmr_cli.runtime import failures
from wmr_cli.runtime.distributed import describe_error
from wmr_cli.runtime.failures import Failure, FailureWatch, is_connection_error, watch_child

OWN = Failure("own reason")
PATIENCE = 10.0


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> "queue.Queue[int]":
    """Return the statuses with which `end_process` was called, and wait only shortly."""
    statuses: queue.Queue[int] = queue.Queue()
    monkeypatch.setattr(failures, "end_process", statuses.put)
    monkeypatch.setattr(failures, "ignore_termination", lambda: None)
    monkeypatch.setattr(failures, "UNWIND_SECONDS", 0.2)
    monkeypatch.setattr(failures, "REASON_SECONDS", 2.0)
    monkeypatch.setattr(failures, "ANSWER_SECONDS", 2.0)
    return statuses


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> "queue.Queue[Failure]":
    """Return the failures that were reported."""
    found: queue.Queue[Failure] = queue.Queue()
    monkeypatch.setattr(failures, "_reporter", found.put)
    return found


@pytest.fixture
def sockets(ended: object, reported: object) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Return the two ends of a connection; at the end, wait for the threads that use it."""
    pair = socket.socketpair()
    before = set(threading.enumerate())
    yield pair
    for one in pair:
        with suppress(OSError):  # closed by the test
            one.shutdown(socket.SHUT_RDWR)
    # `ended` and `reported` must stay in place until then: a watch ends its process
    while set(threading.enumerate()) - before:
        # not `join`: a thread may be listed that has yet to start
        time.sleep(0.01)
    for one in pair:
        one.close()


Sockets = tuple[socket.socket, socket.socket]
Ended: TypeAlias = "queue.Queue[int]"
Reported: TypeAlias = "queue.Queue[Failure]"


def send(peer: socket.socket, content: object) -> None:
    payload = json.dumps(content).encode()
    peer.sendall(len(payload).to_bytes(failures.LENGTH_BYTES, "big") + payload)


WITHOUT_READER = """
import os, sys, threading, time
from wmr_cli.runtime import failures

reader, writer = os.pipe()
os.dup2(writer, 1)
os.close(writer)
os.close(reader)
sys.stdout = open(1, "w", closefd=False)
sys.stdout.write("x")
threading.Thread(target=failures.end_process, args=(7,), daemon=True).start()
time.sleep(20)
"""


def test_a_process_ends_although_its_output_has_no_reader() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_READER], check=False, timeout=60)
    assert done.returncode == 7


def test_rank_1_reports_its_failure_if_rank_0_dies_without_knowing_it(
    sockets: Sockets, ended: Ended, reported: Reported
) -> None:
    watch = FailureWatch(1, {0: sockets[0]})
    watch.share(OWN, ValueError())
    assert watch.take() is None, "rank 0 still lives"
    sockets[1].close()
    assert reported.get(timeout=PATIENCE) == OWN
    assert ended.get(timeout=PATIENCE) == failures.FAILED_STATUS
    assert reported.empty()


def test_rank_1_reports_a_failure_after_rank_0_has_finished(
    sockets: Sockets, ended: Ended, reported: Reported
) -> None:
    watch = FailureWatch(1, {0: sockets[0]})
    send(sockets[1], 0)
    sockets[1].close()
    watch.share(OWN, ValueError())
    assert reported.get(timeout=PATIENCE) == OWN
    assert ended.get(timeout=PATIENCE) == failures.FAILED_STATUS


def test_a_failure_is_reported_once_by_rank_0(
    sockets: Sockets, ended: Ended, reported: Reported
) -> None:
    first = FailureWatch(0, {1: sockets[0]})
    second = FailureWatch(1, {0: sockets[1]})
    second.share(OWN, ValueError())
    assert reported.get(timeout=PATIENCE) == OWN
    # both ends of the connection are in this process: close that of rank 0, as its end does
    sockets[0].shutdown(socket.SHUT_RDWR)
    for _ in range(2):
        assert ended.get(timeout=PATIENCE) == failures.FAILED_STATUS
    assert reported.empty()
    assert first.take() is None
    assert second.take() is None


def test_a_long_error_reaches_rank_0(sockets: Sockets, ended: Ended, reported: Reported) -> None:
    FailureWatch(0, {1: sockets[0]})
    long = Failure("é" * 2 * failures.MAX_MESSAGE_BYTES)
    FailureWatch(1, {0: sockets[1]}).share(long, ValueError())
    text = reported.get(timeout=PATIENCE).text
    assert text == long.text[: len(text)]
    assert len(text) == failures.MAX_TEXT_LENGTH


def test_a_goodbye_carries_the_status(sockets: Sockets) -> None:
    FailureWatch(1, {0: sockets[1]}).finish(143)
    assert failures._receive(sockets[0]) == b"143"


@pytest.mark.parametrize("status", [130, 143])
def test_ranks_follow_one_that_is_stopped_alone(
    status: int, sockets: Sockets, ended: Ended, reported: Reported
) -> None:
    first = FailureWatch(0, {1: sockets[0]})
    send(sockets[1], status)
    sockets[1].close()
    # its main thread has lost the connection, and waits for the reason
    first.share(OWN, RuntimeError("[pair.cc:1] gloo: Connection closed by peer"))
    assert "process 1" in reported.get(timeout=PATIENCE).text
    assert ended.get(timeout=PATIENCE) == status


@pytest.mark.parametrize("status", [0, 1])
def test_ranks_do_not_follow_one_that_has_finished(
    status: int, sockets: Sockets, ended: Ended, reported: Reported
) -> None:
    first = FailureWatch(0, {1: sockets[0]})
    send(sockets[1], status)
    sockets[1].close()
    time.sleep(2 * failures.UNWIND_SECONDS)
    assert not first.has_failed


@pytest.mark.parametrize(
    ("command", "status", "is_reported"),
    [
        ("exit 130", 130, False),
        ("exit 143", 143, False),
        ("kill -INT $$", 130, False),
        ("kill -TERM $$", 143, False),
        ("kill -KILL $$", 137, True),
        ("exit 2", 2, True),
    ],
)
def test_a_rank_that_ends_before_all_are_connected_ends_this_process(
    command: str, status: int, is_reported: bool, ended: Ended, reported: Reported
) -> None:
    with subprocess.Popen(["sh", "-c", command]) as child:
        watch_child(child, 1)
        assert ended.get(timeout=PATIENCE) == status
    assert reported.empty() != is_reported
    if is_reported:
        assert reported.get().hint


def test_a_lost_connection_is_recognised_by_class_and_by_text() -> None:
    for name in failures.CONNECTION_ERRORS:
        assert is_connection_error(vars(torch.distributed)[name]("Failed to recv, got 0 bytes"))
    assert is_connection_error(RuntimeError("[pair.cc:1] gloo: Connection closed by peer"))
    assert not is_connection_error(RuntimeError("shapes differ"))
    assert not is_connection_error(ValueError("NCCL"))


@pytest.mark.parametrize("folder", ["/__w/pytorch/pytorch/third_party/gloo", "../third_party/gloo"])
def test_the_text_of_a_lost_connection_names_no_source_file(folder: str) -> None:
    text = f"[{folder}/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:4242"
    described = str(describe_error(RuntimeError(f"{text}. This may indicate a crash")))
    assert described.endswith(": Connection closed by peer [127.0.0.1]:4242")
