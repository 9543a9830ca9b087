"""``eadt-run python train.py``: reports start, end and energy of a program that is not changed."""

from __future__ import annotations

import argparse
import itertools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from .client import Client, default_workload
from .measure import Measurement

#: What asks a program to end, or to write a checkpoint, as Slurm's ``--signal`` does: by default each of them would end us alone.
PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


#: Programs that run a module; others may run them, as ``srun`` and ``uv run`` do.
RUNNERS = re.compile(r"python[0-9.]*|torchrun|accelerate|accelerate-launch|deepspeed")
#: Python's flag for code or a module, also behind others and joined to what it takes: ``-um package.train``, ``-mpackage.train``.
PYTHON_FLAG = re.compile(r"-[bBdEiIOPqRsSuvx]*([cm])(.*)", re.DOTALL)
#: Modules that run another one.
LAUNCHERS = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed", "deepspeed.launcher.runner"}
)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, whatever becomes of the reports."""
    parser = argparse.ArgumentParser(prog="eadt-run", description="Run a program as an EADT workload.")
    parser.add_argument("--workload", help="namespace/name [default: EADT_WORKLOAD, or local/ and the script's or program's name]")
    parser.add_argument("--url", help="the collector [default: EADT_URL, or http://127.0.0.1:9477]")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("which program? for example: eadt-run python train.py")
    client = Client(options.url, options.workload or default_workload(script_of(command)))
    energy = Measurement("run")
    with energy:
        client.mark(phase="started")
        status = run(command, {**os.environ, "EADT_WORKLOAD": client.workload, "EADT_URL": client.url})
    client.close(phase="finished")
    print(f"eadt-run: {client.workload}: {energy!r}", file=sys.stderr)
    return status


def script_of(command: list[str]) -> str:
    """Returns the script or module that a command runs, by which its own reports name the workload; else the program."""
    takes_modules = is_python = False
    for word, following in itertools.zip_longest(command, command[1:], fillvalue=""):
        if word.endswith(".py"):
            return word
        name = Path(word).name
        if RUNNERS.fullmatch(name):
            takes_modules, is_python = True, name.startswith("python")
            continue
        module = following if takes_modules and word in ("-m", "--module") else ""
        flag = PYTHON_FLAG.fullmatch(word) if is_python else None
        if flag is not None:
            if flag[1] == "c":
                return "python"
            module = flag[2] or following
        if module in LAUNCHERS:
            # What follows are its own flags.
            is_python = False
        elif module:
            return module.rpartition(".")[2] + ".py"
    return command[0]


def run(command: list[str], environment: dict[str, str]) -> int:
    """Runs a command to its end, as a shell would report it; signals that ask us to end are passed on."""
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, _: Any) -> None:
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    for number in PASSED_ON:
        # Who started us may have had them ignored, as nohup does.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, pass_on)
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        print(f"eadt-run: {command[0]} does not start: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126
    for arrived in early:
        process.send_signal(arrived)
    # A terminal sends these to the program, too.
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    status = process.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
