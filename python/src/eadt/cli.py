"""``eadt-run python train.py``: reports start, end and energy of a program that is not changed."""

from __future__ import annotations

import argparse
import subprocess
import sys

from .client import Client
from .measure import Measurement


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, whatever becomes of the reports."""
    parser = argparse.ArgumentParser(prog="eadt-run", description="Run a program as an EADT workload.")
    parser.add_argument("--workload", help="namespace/name [default: EADT_WORKLOAD, or local/ and the program's name]")
    parser.add_argument("--url", help="the collector [default: EADT_URL, or http://127.0.0.1:9477]")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("which program? for example: eadt-run python train.py")
    client = Client(options.url, options.workload)
    energy = Measurement("run")
    with energy:
        client.mark(phase="started")
        try:
            status = subprocess.call(command)
        except FileNotFoundError:
            print(f"eadt-run: there is no program {command[0]}", file=sys.stderr)
            status = 127
        except KeyboardInterrupt:
            status = 130
    client.close(phase="finished")
    print(f"eadt-run: {client.workload}: {energy!r}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
