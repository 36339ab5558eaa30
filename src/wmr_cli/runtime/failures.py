"""Failures of ranks: the first failure of a run ends all its ranks within seconds. No torch.

Collective operations cannot carry an error: the other ranks may already wait inside one that the
failed rank never joins. So every rank has a socket to rank 0 and a thread that reads it. A rank
that is killed closes its socket. Rank 0 reports the failure. The others end as soon as rank 0
knows it, which closes their connections, so that rank 0 does not wait for them either.
"""

import json
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from subprocess import Popen
from typing import Never

MAX_TEXT_LENGTH = 10_000
"""Characters of an error that are sent to the other ranks."""
RESUME_HINT = "continue from the last checkpoint with `resume=True`"
FAILED_STATUS = 2
"""Exit status of all ranks after a failure. After a signal to one rank it is 128 + its number."""
UNWIND_SECONDS = 5.0
"""How long the main thread may take to notice a failure itself and to clean up."""
REASON_SECONDS = 2 * UNWIND_SECONDS
"""How long a rank that has lost its connection waits for the reason from another rank."""
SIGNAL_STATUS = 128
"""The exit status after a signal is this plus its number."""
INTERRUPTED_STATUSES = (SIGNAL_STATUS + signal.SIGINT, SIGNAL_STATUS + signal.SIGTERM)
ANSWER_SECONDS = 15.0
"""How long a rank that has failed waits until rank 0 has received its message."""
CONNECT_SECONDS = 120.0
CONNECTION_ERRORS = ("DistError", "DistBackendError", "DistNetworkError", "DistStoreError")
"""Classes of torch.distributed, by name: this module does not import torch."""
LOOPBACK = "127.0.0.1"
LENGTH_BYTES = 4
MAX_MESSAGE_BYTES = 2**20
KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""In seconds and attempts: a machine that loses power is noticed after two minutes."""


@dataclass(frozen=True)
class Failure:
    """What the user reads about a failure."""

    text: str
    hint: str = ""
    error_class: str = ""
    status: int = FAILED_STATUS


def _print_failure(failure: Failure) -> None:
    sys.stderr.write(f"error: {failure.text}\nhint: {failure.hint}\n")


_reporter: Callable[[Failure], None] = _print_failure
_watch: "FailureWatch | None" = None


def set_reporter(reporter: Callable[[Failure], None]) -> None:
    """Choose how a failure is reported that the main thread does not report itself."""
    global _reporter
    _reporter = reporter


def current_watch() -> "FailureWatch | None":
    """Return the watch of this process; None unless it is one of several ranks."""
    return _watch


def start_watch(index: int, peers: Mapping[int, socket.socket]) -> None:
    """Watch the ranks at these sockets: on rank 0 all others, elsewhere rank 0."""
    global _watch
    _watch = FailureWatch(index, peers)


def report_if_due(watch: "FailureWatch") -> bool:
    """Report the failure if this process must, and has not done so."""
    failure = watch.take()
    if failure is None:
        return False
    _reporter(failure)
    return True


class FailureWatch:
    """Waits for the first failure of any rank, and ends this process after it."""

    def __init__(self, index: int, peers: Mapping[int, socket.socket]) -> None:
        self.index = index
        self._peers = peers
        self._lock = threading.Lock()
        self._failure: Failure | None = None
        self._is_known = threading.Event()
        self._is_reported = threading.Event()
        self._is_answered = threading.Event()
        """Set elsewhere than on rank 0, when rank 0 knows the failure or has ended."""
        self._rank_0_knows = False
        self._has_lost_rank_0 = False
        """Whether rank 0 has ended and cannot have reported the failure."""
        self._is_own = False
        """Whether this rank was the first one to fail, as far as it knows."""
        threading.Thread(target=self._read_peers, daemon=True, name="failure-watch").start()

    @property
    def has_failed(self) -> bool:
        """Whether any rank has failed."""
        return self._is_known.is_set()

    @property
    def status(self) -> int:
        """Exit status of this process after the failure."""
        return FAILED_STATUS if self._failure is None else self._failure.status

    @property
    def _is_reporter(self) -> bool:
        """Whether this rank reports the failure: rank 0, and after its end rank 1."""
        if self.index == 0:
            return True
        # the others do not hear of a failure after the end of rank 0
        return self._has_lost_rank_0 and (self.index == 1 or self._is_own)

    def share(self, own: Failure, error: BaseException) -> None:
        """Send a failure of this rank to all ranks, unless another one came first."""
        if is_connection_error(error):
            # another rank has failed; its reason is better than this effect of it
            self._is_known.wait(REASON_SECONDS)
        ignore_termination()
        # a message above the limit would be read as the end of this rank
        text = own.text[:MAX_TEXT_LENGTH]
        hint = own.hint[:MAX_TEXT_LENGTH]
        self._accept(replace(own, text=text, hint=hint), is_own=True)

    def take(self) -> Failure | None:
        """Return the failure if the calling thread must report it, and once only."""
        with self._lock:
            if self._failure is None or not self._is_reporter or self._is_reported.is_set():
                return None
            self._is_reported.set()
            return self._failure

    def finish(self, status: int = 0) -> None:
        """Announce that this rank ends without a failure, but maybe by a signal."""
        self._send_to_peers(json.dumps(status).encode())

    def wait_for_answer(self) -> None:
        """Wait until rank 0 knows the failure: launchers stop it as soon as another rank ends."""
        if self.index:
            self._is_answered.wait(ANSWER_SECONDS)

    def _accept(self, failure: Failure, *, is_own: bool = False) -> None:
        """Remember the first failure, pass it on, and see to it that this process ends."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = failure
            self._is_own = is_own
        self._is_known.set()
        self._send_to_peers(json.dumps(vars(failure)).encode())
        threading.Thread(target=self._end_process, daemon=True, name="failure-exit").start()

    def _end_process(self) -> None:
        """End this process even if its main thread never returns from a collective operation."""
        try:
            self.wait_for_answer()
            if self._is_reporter:
                self._is_reported.wait(UNWIND_SECONDS)
                if not report_if_due(self):
                    # the main thread has reported it, and may still clean up
                    time.sleep(UNWIND_SECONDS)
        finally:
            end_process(self.status)

    def _send_to_peers(self, payload: bytes) -> None:
        message = len(payload).to_bytes(LENGTH_BYTES, "big") + payload
        for peer in self._peers.values():
            try:
                peer.sendall(message)
            except OSError:
                continue  # it has ended; its socket reports that

    def _read_peers(self) -> None:
        finished: set[int] = set()
        with selectors.DefaultSelector() as selector:
            for rank, peer in self._peers.items():
                selector.register(peer, selectors.EVENT_READ, rank)
            while selector.get_map():
                for key, _ in selector.select():
                    rank = int(key.data)
                    message = _receive(self._peers[rank])
                    if message is None:
                        selector.unregister(key.fileobj)
                        self._note_end(rank, has_finished=rank in finished)
                        continue
                    content = json.loads(message)
                    if isinstance(content, int):
                        finished.add(rank)
                        self._note_goodbye(rank, content)
                        continue
                    if self.index:
                        # rank 0 sends every failure that it accepts
                        self._rank_0_knows = True
                    self._accept(Failure(**content))
                    self._is_answered.set()

    def _note_end(self, rank: int, *, has_finished: bool) -> None:
        """Remember that rank 0 has ended; a rank that ends without a goodbye has died."""
        if rank == 0:
            with self._lock:
                self._has_lost_rank_0 = not self._rank_0_knows
        if not has_finished:
            text = f"process {rank} has died: it was killed, or its memory ran out"
            self._accept(Failure(text, RESUME_HINT, "BrokenContract"))
        # last, because the thread that waits for it reads the results of the lines above
        if rank == 0:
            self._is_answered.set()

    def _note_goodbye(self, rank: int, status: int) -> None:
        """Let this process follow a rank that was stopped alone."""
        # after any other status rank 0 may still print what all ranks have computed
        if status <= SIGNAL_STATUS:
            return
        text = f"process {rank} was stopped by a signal"
        failure = Failure(text, RESUME_HINT, "BrokenContract", status)
        # the same signal may have reached all ranks, which then end on their own
        timer = threading.Timer(UNWIND_SECONDS, self._accept, [failure])
        timer.daemon = True
        timer.start()


def watch_child(child: "Popen[bytes]", rank: int) -> None:
    """End this process if a rank that it has started dies before all ranks are connected."""

    def wait() -> None:
        status = child.wait()
        if status == 0:
            return
        if status < 0:  # Popen negates the number of a signal
            status = SIGNAL_STATUS - status
        is_interrupted = status in INTERRUPTED_STATUSES
        if status < SIGNAL_STATUS:
            # the error is probably that of this process, too, which then reports it
            time.sleep(UNWIND_SECONDS)
        if _watch is not None:
            return
        if not is_interrupted:
            text = f"process {rank} ended with status {status} at its start"
            hint = "try `devices=1`, which shows the error of the process"
            if status > SIGNAL_STATUS:
                text = f"process {rank} was killed at its start by signal {status - SIGNAL_STATUS}"
                hint = "check that the memory suffices for all processes"
            _reporter(Failure(text, hint))
        end_process(status if status > SIGNAL_STATUS else FAILED_STATUS)

    threading.Thread(target=wait, daemon=True, name=f"rank-{rank}").start()


def end_process(status: int) -> Never:
    """End this process at once. Interpreter shutdown can abort in threads of torch."""
    # os._exit does not flush
    try:
        for stream in (sys.stdout, sys.stderr):
            # a pipe may have lost its reader
            with suppress(OSError, ValueError):
                stream.flush()
    finally:
        os._exit(status)


def is_connection_error(error: BaseException) -> bool:
    """Whether an error is an effect of another rank's failure."""
    if any(one.__name__ in CONNECTION_ERRORS for one in type(error).__mro__):
        return True
    # gloo raises a plain RuntimeError; only its text identifies it
    text = str(error)
    return isinstance(error, RuntimeError) and any(
        word in text for word in ("gloo", "NCCL", "Gloo", "Connection closed by peer")
    )


def ignore_termination() -> None:
    """Ignore SIGTERM, which torchrun and Slurm send to the ranks that have not failed."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def open_listener(host: str) -> socket.socket:
    """Listen on rank 0 for the sockets of the other ranks; an empty host is every network."""
    if host == "" and socket.has_dualstack_ipv6():
        listener = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    else:
        listener = socket.create_server((host, 0))
    listener.settimeout(CONNECT_SECONDS)
    return listener


def accept_ranks(listener: socket.socket, secret: str, count: int) -> dict[int, socket.socket]:
    """Return the sockets of the other ranks; close those of processes without the secret."""
    peers: dict[int, socket.socket] = {}
    with listener:
        while len(peers) < count - 1:
            peer, _ = listener.accept()
            peer.settimeout(CONNECT_SECONDS)
            name, _, rank = (_receive(peer) or b"").decode(errors="replace").partition(" ")
            if name != secret:
                peer.close()
                continue
            peers[int(rank)] = _keep_alive(peer)
    return peers


def connect_to_rank_0(host: str, port: int, secret: str, index: int) -> dict[int, socket.socket]:
    """Return the socket to rank 0."""
    peer = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
    greeting = f"{secret} {index}".encode()
    peer.sendall(len(greeting).to_bytes(LENGTH_BYTES, "big") + greeting)
    return {0: _keep_alive(peer)}


def _keep_alive(peer: socket.socket) -> socket.socket:
    """Notice a machine that has lost power or network."""
    peer.settimeout(None)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        # macOS and Linux do not name the same options
        if hasattr(socket, name):
            peer.setsockopt(socket.IPPROTO_TCP, vars(socket)[name], value)
    return peer


def _receive(peer: socket.socket) -> bytes | None:
    """Return the next message; None if the peer has ended."""
    header = _receive_exactly(peer, LENGTH_BYTES)
    if header is None:
        return None
    length = int.from_bytes(header, "big")
    return _receive_exactly(peer, length) if length <= MAX_MESSAGE_BYTES else None


def _receive_exactly(peer: socket.socket, length: int) -> bytes | None:
    received = b""
    while len(received) < length:
        try:
            part = peer.recv(length - len(received))
        except OSError:  # the connection was reset
            return None
        if not part:
            return None
        received += part
    return received
