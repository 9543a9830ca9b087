"""The way to the collector: a thread that sends the newest report and brings back the directive.

``report`` appends its fields to a queue and returns; everything else, and whatever can fail or wait, is the thread's. In training nothing
is raised. A step of training finds the processor's caches full of other things, so each line that it does not run counts. The thread
takes the interpreter from training while it runs, so its lines count, too.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import io
import json
import logging
import math
import os
import re
import socket
import ssl
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import time_ns
from typing import Any, Final
from urllib.parse import quote, urlsplit

from .directives import Directive, parse_answer, read_file, read_text
from .events import PROGRESS_FIELDS, event_time, nearest, plain_event
from .failures import ELSEWHERE, VisibleText, explain, explain_answer

logger = logging.getLogger("eadt")
logger.addFilter(VisibleText())

DEFAULT_URL: Final = "http://127.0.0.1:9477"
#: Seconds between two requests of a job, at least.
INTERVAL_SECONDS: Final = 2.0
#: Seconds between two requests that may be asked for, at most: a day.
LONGEST_INTERVAL_SECONDS: Final = 86_400.0
#: Seconds that a request may take, with its answer.
REQUEST_SECONDS: Final = 5.0
#: Longest wait before a server that failed is tried again.
BACKOFF_SECONDS: Final = 30.0
#: Seconds that ``close`` may take, and the end of the interpreter for all clients that were not closed.
CLOSE_SECONDS: Final = 2.0
#: Events that begin or end something, kept while the server is away.
KEPT_EVENTS: Final = 64
#: Number of queued reports from which each new one is merged, so that losses on a device are not kept by the thousand.
QUEUED_REPORTS: Final = 64
#: Reasons of failures that are remembered, and seconds after which one is logged again.
KEPT_FAILURES: Final = 64
LOGGED_AGAIN_SECONDS: Final = 3600.0
_DIGITS: Final = re.compile(r"\d+")
#: Longest answer that is read.
ANSWER_BYTES: Final = 1 << 20
#: Answers after which a report is sent again, as after redirects, failures of the server and answers that are no collector's: a token or an
#: address may be mended by then.
SENT_AGAIN: Final = frozenset({401, 403, 404, 405, 408, 429})
#: What switches reports off by ``EADT_DISABLED``.
TRUE: Final = frozenset({"1", "true", "yes", "on"})

#: Programs that run notebooks.
NOTEBOOKS: Final = frozenset({"ipykernel_launcher", "colab_kernel_launcher"})

#: What a job counts: steps, samples, and the newest loss.
Count = tuple[int, float, Any]

_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def default_workload(program: str | None = None) -> str:
    """Returns ``EADT_WORKLOAD``, or ``local/`` and the name of a program; without one, of this script or notebook."""
    name = os.environ.get("EADT_WORKLOAD", "").strip()
    if name:
        return name
    script = program or (sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "python")
    if Path(script).stem in NOTEBOOKS:
        # Jupyter names the notebook; two of one name would be one job.
        script = os.environ.get("JPY_SESSION_NAME") or "notebook"
    return "local/" + (re.sub(r"[^A-Za-z0-9._-]+", "-", Path(script).stem).strip("-") or "python")


def default_rank() -> int:
    """Returns the rank of this process, as launchers name it; 0 if none does."""
    for name in ("EADT_RANK", "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return 0


def without_credentials(url: str) -> str:
    """Returns an address for logs, without its user, password and query. Never raises: it is logged for addresses that are none, too."""
    try:
        parts = urlsplit(url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
    except ValueError:
        scheme, separator, rest = url.rpartition("://")
        return scheme + separator + re.split(r"[?#]", rest.rpartition("@")[2])[0]


def plain_url(given: str) -> str:
    """Returns the address of a collector: ``host:port`` is without TLS, and the path of its reports is left out."""
    scheme, _, rest = given.strip().rpartition("://")
    return (scheme or "http") + "://" + rest.rstrip("/").removesuffix("/v1/progress").rstrip("/")


class Client:
    """Reports of one rank of one workload. Safe to use from any thread, and after a fork.

    What is not given comes from ``EADT_URL``, ``EADT_WORKLOAD``, ``EADT_TOKEN_FILE``, ``EADT_CA_FILE`` and ``EADT_DIRECTIVES_FILE``.
    ``interval_seconds``: seconds between two requests, at least. ``on_directive``: called by the client's thread with each new directive
    (``None``: nothing is asked any more) and its revision.
    """

    def __init__(
        self,
        url: str | None = None,
        workload: str | None = None,
        *,
        rank: int | None = None,
        token_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        directives_file: str | os.PathLike[str] | None = None,
        interval_seconds: float = INTERVAL_SECONDS,
        on_directive: Callable[[Directive | None, int], None] | None = None,
    ) -> None:
        environment = os.environ
        self.url = plain_url(url or environment.get("EADT_URL") or DEFAULT_URL)
        self.workload = workload or default_workload()
        self.rank = default_rank() if rank is None else rank
        self.interval_seconds = _checked_interval(interval_seconds)
        self.is_disabled = environment.get("EADT_DISABLED", "").strip().lower() in TRUE
        self.sent = 0
        self.failed = 0
        self.refused = 0
        self.dropped = 0
        self.last_error: str | None = None
        #: The newest one when the present batch was taken: its arrival says nothing about later ones.
        self._error_before: str | None = None
        #: When a reason was logged, the oldest one first; numbers in it are masked.
        self._logged_failures: dict[str, float] = {}
        self._token_file = token_file or environment.get("EADT_TOKEN_FILE") or None
        self._ca_file = ca_file or environment.get("EADT_CA_FILE") or None
        self._directives_file = directives_file or environment.get("EADT_DIRECTIVES_FILE") or None
        self._on_directive = on_directive
        #: Called by the thread for each report that it sends: what the job does now.
        self.state: Callable[[], dict[str, Any]] | None = None
        #: Called by the thread if there is nothing to send: a job that counts steps reports them at the next one.
        self.demand: Callable[[], None] | None = None
        #: Called at the end of the interpreter if the client was not closed: the fields of its last event.
        self.ending: Callable[[], dict[str, Any]] | None = None
        #: Fields that no event has, and that were logged.
        self._unknown_fields: set[str] = set()
        #: Fields whose values did not fit, and that were logged.
        self._unfit_fields: set[str] = set()
        #: Why the newest directive cannot be read; the one before stays.
        self.directives_error: str | None = None
        self._answer: tuple[int, Directive | None] = (0, None)
        #: Decisions that asked the workload for something before the start of this job had arrived: they were made for an earlier one.
        self.earlier_decisions: set[str] = set()
        #: The server's time when the start arrived, to the second, and that of its last answer.
        self._arrived_at, self._answered_at = "", ""
        #: Reports as they came: time, fields, and a job's count. Taking requires the lock; adding does not.
        self.queue: deque[tuple[int, dict[str, Any], Count | None]] = deque()
        self._reset()
        _clients.add(self)

    def _reset(self) -> None:
        """Begins anew in this process: a fork copies neither threads nor the owners of locks."""
        self._pid = os.getpid()
        # A signal handler may close the client while its thread of execution is in here.
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self.queue.clear()
        self._newest: dict[str, Any] = {}
        self._sticky: dict[str, Any] = {}
        self._events: deque[dict[str, Any]] = deque()
        self._thread: threading.Thread | None = None
        self._set_running(False)
        self._connection: http.client.HTTPConnection | None = None
        self._context: ssl.SSLContext | None = None
        self._closing = False
        #: Time and fields of the last event of a job that was collected, until the thread sends it.
        self._left: tuple[int, dict[str, Any]] | None = None
        self._taken: list[dict[str, Any]] = []
        #: Whether a start was marked that has not arrived.
        self._is_starting = False
        #: Threads of other clients, whose last events come before those of this one.
        self._predecessors: deque[threading.Thread] = deque()

    def report(self, **fields: Any) -> None:
        """Stores the newest figures; they are sent within ``interval_seconds``. Never raises, never waits.

        Tensors are read by the thread, so that no step waits for a device; they must not be changed in place afterwards.
        """
        try:
            queue = self.queue
            queue.append((time_ns(), fields, None))
            if len(queue) > self.most_queued:
                self.tend()
        except Exception as error:
            self.note_failure(error)

    def tend(self) -> None:
        """Starts the thread if there is none, and keeps the queue short. Callers that add to the queue call this now and then."""
        if self.is_disabled:
            self.queue.clear()
            return
        try:
            if not self._is_running:
                self._start()
            elif len(self.queue) > QUEUED_REPORTS and self._lock.acquire(blocking=False):
                try:
                    self._merge()
                finally:
                    self._lock.release()
        except Exception as error:
            self.note_failure(error)

    def _merge(self) -> None:
        """Makes one report of those in the queue: a later figure replaces an earlier one. With the lock held."""
        newest, queue = self._newest, self.queue
        while queue:
            moment, fields, count = queue.popleft()
            if count is not None:
                steps, samples, loss = count
                newest["steps_total"] = steps
                if samples:
                    newest["samples_total"] = samples
                if loss is not None:
                    newest["loss"] = loss
            newest.update(fields)
            newest["time"] = moment

    def mark(self, **fields: Any) -> int:
        """Keeps an event; it is sent again until it arrived. Returns its time in nanoseconds.

        A start and an end are sent at once, and the others if many are kept.
        """
        return self._mark(fields, None)

    def _mark(self, fields: dict[str, Any], ended: int | None) -> int:
        """Keeps an event of now, or of when its job ``ended``."""
        moment = time_ns()
        if self.is_disabled:
            return moment
        try:
            with self._lock:
                self._merge()
                newest, self._newest = self._newest, {}
                if newest:
                    self._events.append(newest)
                moment = time_ns() if ended is None else ended
                if fields.get("phase") == "started":
                    self._begin_job()
                self._keep(moment, fields)
                is_urgent = "phase" in fields or len(self._events) >= KEPT_EVENTS // 2
            if not self._is_running:
                self._start()
            if is_urgent:
                self._wake.set()
        except Exception as error:
            self.note_failure(error)
        return moment

    def _begin_job(self) -> None:
        """Notes that what is asked until the start arrives was asked of an earlier job. A file of directives is for this one."""
        self._is_starting, self._arrived_at = True, ""
        directive = self._answer[1] if self._directives_file is None else None
        self.earlier_decisions = set() if directive is None else {directive.decision_id}

    def follow(self, thread: threading.Thread) -> None:
        """Has the thread of this client send nothing before another one has ended; it waits two seconds at most."""
        self._predecessors.append(thread)

    def add(self, moment: int, **fields: Any) -> None:
        """Keeps what a mark of this time did not report; it is sent with the next report, and again until it arrived."""
        if not self.is_disabled:
            with self._lock:
                self._keep(moment, fields)

    def _keep(self, moment: int, fields: dict[str, Any]) -> None:
        """Adds an event that is kept until it arrived. With the lock held."""
        self._events.append({**fields, "time": moment})
        while len(self._events) > KEPT_EVENTS:
            self._events.popleft()
            self.dropped += 1

    def always(self, **fields: Any) -> None:
        """Adds these fields to every event from now on; ``None`` removes one."""
        with contextlib.suppress(Exception), self._lock:
            for name, value in fields.items():
                if value is None:
                    self._sticky.pop(name, None)
                else:
                    self._sticky[name] = value

    def directive(self) -> tuple[int, Directive | None]:
        """Returns the revision and the directive that the job is asked for now; revision 0: nothing was ever asked."""
        return self._answer

    def close(self, **fields: Any) -> None:
        """Sends what is left, with ``fields`` as the last event; returns within two seconds, whatever the server does."""
        thread = self.begin_close(fields)
        if thread is not None:
            thread.join(CLOSE_SECONDS)

    def begin_close(self, fields: dict[str, Any], ended: int | None = None) -> threading.Thread | None:
        """Has the thread send what is left and end. Returns it, or ``None`` if there is nothing to wait for."""
        if self.is_disabled or self._pid != os.getpid():
            return None
        if fields:
            self._mark(fields, ended)
        self._closing = True
        self._wake.set()
        return None if self._thread is threading.current_thread() else self._thread

    def is_open(self) -> bool:
        """Returns whether a thread of this process reports and was not closed."""
        return self._is_running and not self._closing and self._pid == os.getpid()

    def leave(self, fields: dict[str, Any]) -> None:
        """Has the thread send what is left, with ``fields`` as the last event, and end, within ``interval_seconds``. Takes no lock."""
        self._left = (time_ns(), fields)

    def _take_left(self) -> threading.Thread | None:
        """Closes, if a collected job left its last event. Returns the thread, or ``None`` if there is nothing to wait for."""
        left, self._left = self._left, None
        return None if left is None else self.begin_close(left[1], left[0])

    def follow_left(self) -> None:
        """Has what collected jobs of this workload and rank left sent before what is reported from now on. Never raises."""
        try:
            left, self._left = self._left, None
            if left is not None and left[1]:
                self._mark(left[1], left[0])
            for other in list(_clients):
                if other is not self and (other.workload, other.url, other.rank) == (self.workload, self.url, self.rank):
                    thread = other._take_left()
                    if thread is not None:
                        self.follow(thread)
        except Exception as error:
            self.note_failure(error)

    def begin_exit(self) -> threading.Thread | None:
        """Begins to close a client that reports and was not closed. Returns its thread, or ``None`` if nothing is left to send."""
        if not self.is_open():
            return None
        if self._left is not None:
            return self._take_left()
        fields: dict[str, Any] = {}
        try:
            fields = self.ending() if self.ending is not None else {}
        except Exception as error:
            self.note_failure(error)
        return self.begin_close(fields)

    def _start(self) -> None:
        with self._lock:
            if self._is_running:
                return
            self._closing = False
            self._set_running(True)
            self._thread = threading.Thread(target=self._run, name="eadt-client", daemon=True)
            try:
                self._thread.start()
            except BaseException:
                self._set_running(False)
                raise

    def _set_running(self, is_running: bool) -> None:
        self._is_running = is_running
        #: Reports in the queue after which adding another calls ``tend``: at once without a thread.
        self.most_queued = QUEUED_REPORTS if is_running else -1

    def note_failure(self, error: BaseException | str) -> None:
        """Logs what keeps progress, or a field of it, from being reported: once for each reason, and again after an hour."""
        text = error if isinstance(error, str) else explain(error)
        self.last_error = text
        # Times and numbers differ from one answer to the next.
        reason, now = _DIGITS.sub("0", text), time.monotonic()
        logged = self._logged_failures
        if now < logged.get(reason, -math.inf) + LOGGED_AGAIN_SECONDS:
            return
        logged.pop(reason, None)
        if len(logged) >= KEPT_FAILURES:
            logged.pop(next(iter(logged)), None)
        logged[reason] = now
        logger.warning("EADT: reports of %s to %s: %s", self.workload, without_credentials(self.url), text)

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            self._set_running(False)

    def _serve(self) -> None:
        backoff = 0.0
        while True:
            self._wake.wait(max(self.interval_seconds, backoff))
            self._wake.clear()
            self._take_left()
            closing = self._closing
            while self._predecessors:
                self._predecessors.popleft().join(CLOSE_SECONDS)
            try:
                self._read_directives_file()
                self._error_before = self.last_error
                batch = self._take()
                if batch:
                    self._post(batch)
                backoff = 0.0
            except _Refused as refused:
                self.note_failure(refused)
                self.refused += 1
            except Exception as error:
                self._drop_connection()
                # Noted before the count rises, so that a reader of the count finds the reason.
                self.note_failure(error)
                self.failed += 1
                backoff = min(BACKOFF_SECONDS, max(1.0, backoff * 2))
            if closing:
                self._drop_connection()
                return
            # A start and an end wake the thread at once; a server that failed is left alone all the same.
            if backoff:
                time.sleep(min(1.0, backoff) if not self._closing else 0.0)

    def _take(self) -> list[dict[str, Any]]:
        """Returns what is to be sent; marks stay until they arrived."""
        with self._lock:
            self._merge()
            events, newest = list(self._events), dict(self._newest)
            sticky = dict(self._sticky)
        raw = [*events, newest] if newest else events
        if not newest and self.demand is not None:
            self.demand()
        # After the acknowledgement, so that it is never sent before what it acknowledges. In each request, marks alone included: a job that
        # evaluates more often than it sends has nothing else.
        state = self.state() if raw and self.state is not None else {}
        batch = []
        for fields in raw:
            now = state if fields is raw[-1] else {}
            self._note_unknown(fields)
            event = plain_event({"rank": self.rank, **sticky, **now, **fields, "time": _text_of(fields["time"])}, self._note_unfit)
            if "rank" not in event:
                # One that does not fit must not make this another rank's.
                event.update(plain_event({"rank": self.rank}))
            batch.append({"workload": self.workload, **event})
        self._taken = raw
        return batch

    def _note_unknown(self, fields: dict[str, Any]) -> None:
        """Logs each field that no event has, once: it is not sent."""
        for name in fields.keys() - PROGRESS_FIELDS - self._unknown_fields:
            self._unknown_fields.add(name)
            hint = nearest(name, PROGRESS_FIELDS)
            logger.warning("EADT: reports of %s: there is no field %s, which is not sent%s", self.workload, name, hint)

    def _note_unfit(self, name: str, instead: str) -> None:
        """Logs a field whose value is not sent, once: the others are."""
        if name not in self._unfit_fields:
            self._unfit_fields.add(name)
            logger.warning("EADT: reports of %s: %s is %s, and not sent", self.workload, name, instead)

    def _delivered(self, again: set[int], refused: int) -> None:
        """Forgets what was sent, but marks of these places in the batch, which are sent again. Counts what the collector took."""
        with self._lock:
            taken = {id(fields) for place, fields in enumerate(self._taken) if place not in again}
            self._events = deque(fields for fields in self._events if id(fields) not in taken)
            # Newer figures may have been stored meanwhile.
            if self._taken and self._newest.get("time") == self._taken[-1]["time"]:
                self._newest = {}
        self.sent += len(self._taken) - refused

    def _post(self, batch: list[dict[str, Any]]) -> None:
        body = json.dumps(batch, allow_nan=False).encode()
        status, answer = self._request("POST", "/v1/progress", body)
        if status in SENT_AGAIN or (status != 202 and status < 400) or status >= 500:
            raise ConnectionError(f"the server answers {explain_answer(status, _reason(answer))}")
        refused = _objects(answer.get("refused"))
        places = {place: _is_sent_again(entry) for entry in refused if (place := _place_of(entry, len(batch))) is not None}
        self._delivered({place for place, again in places.items() if again}, len(places) if status == 202 else len(batch))
        if status != 202:
            raise _Refused(f"the collector refuses the report with {explain_answer(status, _reason(answer))}")
        for entry in refused:
            self.note_failure(f"the collector refuses {entry.get('field')}: {entry.get('error')}")
        # A file is the only source where one is named: two would take turns.
        for entry in _objects(answer.get("directives")) if self._directives_file is None else []:
            if entry.get("workload") == self.workload:
                self._take_readable_answer(entry, "the collector's answer")
        self._note_arrival()
        if not refused and self.last_error is self._error_before:
            self.last_error = None
            self._logged_failures.clear()

    def poll_directive(self, wait_seconds: float = 0.0) -> tuple[int, Directive | None]:
        """Asks the collector, and waits up to ``wait_seconds`` for a change. Blocks and raises: not for training threads."""
        after = self._answer[0]
        namespace, _, name = self.workload.partition("/")
        path = f"/v1/directives/{quote(namespace, safe='')}/{quote(name, safe='')}"
        connection, until = self._connect(), time.monotonic() + REQUEST_SECONDS + wait_seconds
        try:
            status, answer = self._exchange(connection, "GET", f"{path}?after={after}&wait={wait_seconds}", None, until)
        finally:
            connection.close()
        if status != 200 or "revision" not in answer:
            raise ConnectionError(f"the server answers {explain_answer(status, _reason(answer))}")
        self._take_answer(answer)
        return self._answer

    def _take_answer(self, answer: dict[str, Any]) -> None:
        revision, directive = parse_answer(answer)
        if directive is not None and self._is_of_an_earlier_job(answer):
            # Before the directive itself: another thread may look for it.
            self.earlier_decisions.add(directive.decision_id)
        if revision == self._answer[0]:
            return
        self._answer = (revision, directive)
        if self._on_directive is not None:
            self._on_directive(directive, revision)

    def _is_of_an_earlier_job(self, answer: dict[str, Any]) -> bool:
        """Returns whether a directive was made before the start of this job had arrived, as the servers have it; clocks here do not count.

        A collector that has just begun may learn it later.
        """
        if self._directives_file is not None:
            return False
        asked_at = answer["directive"].get("time")
        return self._is_starting or (isinstance(asked_at, str) and asked_at.endswith("Z") and asked_at[:19] < self._arrived_at)

    def _note_arrival(self) -> None:
        """Notes that a start has arrived: what is asked from now on may be asked of this job."""
        with self._lock:
            if self._is_starting and not any(event.get("phase") == "started" for event in self._events):
                self._is_starting, self._arrived_at = False, self._answered_at

    def _take_readable_answer(self, answer: dict[str, Any], source: str) -> None:
        """Takes an answer; one that cannot be read keeps no report from being sent."""
        try:
            self._take_answer(answer)
            self.directives_error = None
        except Exception as error:
            self._note_directive(source, error)

    def _note_directive(self, source: str, error: Exception) -> None:
        text = f"{source}: {error or type(error).__name__}"
        if text != self.directives_error:
            self.directives_error = text
            logger.warning("EADT: a directive for %s cannot be read from %s", self.workload, text)

    def _read_directives_file(self) -> None:
        path = self._directives_file
        if path is None:
            return
        try:
            answer = read_file(Path(path))
        except FileNotFoundError:
            return
        except Exception as error:
            self._note_directive(str(path), error)
        else:
            self._take_readable_answer(answer, str(path))

    def _request(self, method: str, path: str, body: bytes | None) -> tuple[int, dict[str, Any]]:
        until = time.monotonic() + REQUEST_SECONDS
        if self._connection is None:
            self._connection = self._connect()
            return self._exchange(self._connection, method, path, body, until)
        try:
            return self._exchange(self._connection, method, path, body, until)
        except (ConnectionError, http.client.HTTPException):
            # A kept connection may have ended meanwhile; reports may arrive twice, as counters do no harm.
            self._drop_connection()
            self._connection = self._connect()
            return self._exchange(self._connection, method, path, body, until)

    def _connect(self) -> http.client.HTTPConnection:
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ValueError(f"that is no address ({error}): {ELSEWHERE}") from None
        if not host or parts.scheme not in ("http", "https"):
            raise ValueError(f"that is no address of http:// or https://: {ELSEWHERE}")
        if parts.scheme == "https":
            if self._context is None:
                self._context = self._trusted()
            return http.client.HTTPSConnection(host, port or 443, context=self._context)
        return http.client.HTTPConnection(host, port or 80)

    def _trusted(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self._ca_file)
        except OSError as error:
            raise ValueError(f"the CA certificates of EADT_CA_FILE, {self._ca_file}, cannot be read: {error}") from None

    def _token(self, path: str | os.PathLike[str]) -> str:
        """Returns the token; read each time, since a projected one changes."""
        try:
            words = read_text(path).split()
        except (OSError, ValueError) as error:
            raise ValueError(f"the token file of EADT_TOKEN_FILE, {path}, cannot be read: {error}") from None
        # Checked here: the error of a header that cannot be sent would have the token in it.
        if len(words) != 1 or not words[0].isascii() or not words[0].isprintable():
            raise ValueError(f"the token file of EADT_TOKEN_FILE, {path}, must hold one token and nothing else")
        return words[0]

    def _exchange(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None, until: float
    ) -> tuple[int, dict[str, Any]]:
        """Sends a request and reads its answer; raises ``TimeoutError`` if it is not through ``until`` then, however it drips."""
        headers = {"content-type": "application/json"}
        if self._token_file is not None:
            headers["authorization"] = "Bearer " + self._token(self._token_file)
        connection.timeout = _seconds_until(until)
        if connection.sock is not None:
            connection.sock.settimeout(connection.timeout)
        connection.response_class = lambda sock, *rest, **options: http.client.HTTPResponse(_Bounded(sock, until), *rest, **options)  # type: ignore
        connection.request(method, urlsplit(self.url).path + path, body=body, headers=headers)
        response = connection.getresponse()
        text = response.read(ANSWER_BYTES)
        self._answered_at = _second_of(response.getheader("date"))
        if 300 <= response.status < 400:
            text = json.dumps({"error": f"a redirect to {response.getheader('location')}, which is not followed"}).encode()
        if response.will_close:
            connection.close()
        try:
            answer = json.loads(text) if text else None
        except ValueError:
            answer = None if response.status == 202 else {"error": text[:200].decode(errors="replace")}
        if response.status == 202 and not isinstance(answer, dict):
            raise ValueError(f"the server answers 202 without a JSON object, which is no collector's answer: {ELSEWHERE}")
        return response.status, answer if isinstance(answer, dict) else {}

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()


class _Bounded:
    """The reading side of a socket, whose reads all end by one moment: a timeout of the socket is for each of them anew."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock, self._until = sock, until

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_BoundedReader(self._sock, self._until))


class _BoundedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock, self._until = sock, until
        # It keeps the socket open while the answer is read.
        self._file = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(_seconds_until(self._until))
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


def _seconds_until(moment: float) -> float:
    """Returns the seconds until a moment of the monotonic clock; raises ``TimeoutError`` if it has passed."""
    left = moment - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _second_of(date: str | None) -> str:
    """Returns the date of an answer as events have their times, to the second; empty if there is none."""
    try:
        return event_time(parsedate_to_datetime(date or ""))[:19]
    except Exception:
        return ""


def _checked_interval(seconds: float) -> float:
    """Returns the seconds between two requests; raises ``ValueError`` if it is too long or too short to wait for."""
    try:
        number = float(seconds)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 < number <= LONGEST_INTERVAL_SECONDS:
        raise ValueError(f"interval_seconds is {seconds!r}: give a number of seconds above 0, at most {LONGEST_INTERVAL_SECONDS:g}")
    return number


def _reason(answer: dict[str, Any]) -> str:
    """Returns the reason in an answer; empty if it gives none."""
    reason = answer.get("error")
    return reason if isinstance(reason, str) else ""


class _Refused(Exception):
    """The collector understood the report and does not take it: sending it again would change nothing."""


def _objects(listed: Any) -> list[dict[str, Any]]:
    """Returns the objects of a list in an answer; none if it is no list."""
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def _is_sent_again(refused: dict[str, Any]) -> bool:
    """Returns whether the collector had no room for an event, which is sent again; all else that it refuses it would refuse again."""
    return refused.get("status") in (429, 503)


def _place_of(refused: dict[str, Any], events: int) -> int | None:
    """Returns the place in the batch of an event that is refused; ``None``: it names none."""
    place = refused.get("index")
    return place if isinstance(place, int) and 0 <= place < events else None


def _text_of(nanoseconds: int) -> str:
    return event_time(datetime.fromtimestamp(nanoseconds / 1e9, timezone.utc))


def _after_fork() -> None:
    for client in list(_clients):
        client._reset()


def _at_exit() -> None:
    """Closes the clients that were not closed; waits two seconds at most for all of them together."""
    until = time.monotonic() + CLOSE_SECONDS
    threads = [client.begin_exit() for client in list(_clients)]
    for thread in threads:
        if thread is not None:
            thread.join(max(0.0, until - time.monotonic()))


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
