"""Servers for tests: one that takes reports and answers as the collector does, and ones that do harm."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Recorder:
    """Keeps every event; answers with ``status`` and what ``answer`` has.

    As the real one, it asks a job for nothing in the answer to its start; with ``asks_at_start`` an earlier job was asked.
    """

    def __init__(self, status: int = 202) -> None:
        self.status = status
        self.events: list[dict[str, Any]] = []
        self.requests: list[float] = []
        self.answer: dict[str, Any] = {}
        self.asks_at_start = False
        #: What is answered instead of JSON.
        self.body: bytes | None = None
        self.headers: dict[str, str] = {}
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                recorder.requests.append(time.monotonic())
                recorder.events.extend(body)
                text = recorder.body
                if text is None:
                    answer = dict(recorder.answer)
                    if not recorder.asks_at_start and any(event.get("phase") == "started" for event in body):
                        answer.pop("directives", None)
                    text = json.dumps({"accepted": len(body), **answer}).encode()
                self.send_response(recorder.status)
                for name, value in recorder.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        # A client that leaves without reading to the end is what is tested.
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Harmful:
    """Accepts connections and hangs, resets them, or answers a byte at a time: in the head or in the body."""

    def __init__(self, kind: str) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._kind = kind
        self._kept: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self._kind == "reset":
                connection.recv(10)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
                continue
            self._kept.append(connection)
            if self._kind.startswith("drips"):
                threading.Thread(target=self._drip, args=(connection,), daemon=True).start()

    def _drip(self, connection: socket.socket) -> None:
        head = b"HTTP/1.1 202 Accepted\r\n" + (b"content-length: 100000\r\n\r\n" if self._kind == "drips the body" else b"x-more: ")
        with contextlib.suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(head)
            while True:
                connection.sendall(b"x")
                time.sleep(0.02)

    def close(self) -> None:
        self._listener.close()
        for connection in self._kept:
            connection.close()


def absent_url() -> str:
    """Returns the address of a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def wait_for(condition: Callable[[], Any], seconds: float = 180.0) -> Any:
    """Returns the first true value; fails after ``seconds``."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s")


class Exporter:
    """A dcgm-exporter whose GPUs work for one job of a batch system; ``watts`` is asked for the power of each."""

    def __init__(self, watts: Callable[[], float], gpus: int, job: str) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                power = watts()
                lines = [f'DCGM_FI_DEV_POWER_USAGE{{gpu="{gpu}",UUID="GPU-{gpu}",hpc_job="{job}"}} {power}' for gpu in range(gpus)]
                body = ("\n".join(lines) + "\n").encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def events_of(program: str, data: str, topic: str) -> list[dict[str, Any]]:
    """Returns the events of a topic in a data folder that is not being written, without tombstones."""
    command = [program, "tail", topic, "--from-start", "--until-end", "--json", "--data-dir", data]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EADT_")}
    lines = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    return [event["data"] for event in map(json.loads, lines) if "data" in event]


class RealCollector:
    """``eadt up --gpus none`` of the program that is tested, with windows of one second."""

    def __init__(self, program: str, data: str | None = None, config: Path | None = None) -> None:
        self._own = tempfile.TemporaryDirectory() if data is None else None
        folder = data or self._own.name  # type: ignore[union-attr]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("EADT_") and name != "KAFKA_BROKERS"}
        settings = {
            "EADT_COLLECTOR__PROGRESS__LISTEN": "127.0.0.1:0",
            "EADT_HTTP__ADDRESS": "127.0.0.1:0",
            "EADT_PROCESSOR__WINDOW_SECONDS": "1",
            "EADT_PROCESSOR__JOIN_GRACE_SECONDS": "1",
            "NO_COLOR": "1",
            "EADT_LOG__FILTER": "info,eadt::live=debug,fjall=warn,lsm_tree=warn",
        }
        self.process = subprocess.Popen(
            [program, "up", "--gpus", "none", "--data-dir", folder, "--json", "--no-view", *(["--config", str(config)] if config else [])],
            env={**clean, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

        def address() -> Any:
            if self.process.poll() is not None:
                raise AssertionError("eadt up ended: " + "".join(self.log))
            lines = [line for line in self.log if "progress endpoint listens" in line]
            return re.search(r"127\.0\.0\.1:\d+", lines[0]) if lines else None

        self.url = "http://" + wait_for(address).group(0)

    def _read(self) -> None:
        for line in self.process.stderr or []:
            self.log.append(line)

    def windows(self, workload: str) -> list[str]:
        """Returns the lines of the windows of a workload."""
        return [line for line in self.log if "window" in line and workload in line]

    def stop(self) -> dict[str, Any]:
        """Interrupts it and returns its closing report."""
        self.process.send_signal(signal.SIGINT)
        report = self.process.stdout.read() if self.process.stdout else ""
        assert self.process.wait(180) == 0, "".join(self.log)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        if self._own is not None:
            self._own.cleanup()
        return dict(json.loads(report))
