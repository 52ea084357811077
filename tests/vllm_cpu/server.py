"""Runs `vllm serve` as users do: the command line, a port, signals."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
from vllm_cpu.engine import LLM
from vllm_cpu.environment import make_environment
from vllm_cpu.processes import list_session, start_session, wait_for_session

# A server's engine is always a process of its own.
IN_PROCESSES = {"VLLM_ENABLE_V1_MULTIPROCESSING": None}


@dataclass(frozen=True)
class Server:
    """A server that answers. It is killed, with all that it started, when the test leaves it."""

    url: str
    process: subprocess.Popen[bytes]
    log_file: Path

    def get(self, path: str, seconds: float = 10) -> str:
        """Returns what the server answers to GET, as text; OSError where it does not."""
        with urllib.request.urlopen(self.url + path, timeout=seconds) as answer:
            text: str = answer.read().decode()
        return text

    def client(self) -> openai.OpenAI:
        """Returns OpenAI's own client for it."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)

    def log(self) -> str:
        """Returns what all of its processes have written so far."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def stop(self, how: signal.Signals = signal.SIGINT, seconds: float = 60) -> int:
        """Sends the signal to the server's first process and returns its exit code."""
        self.process.send_signal(how)
        return self.process.wait(seconds)

    def wait_for_left_over(self) -> list[int]:
        """Returns the processes that still live ten seconds after the first one's end."""
        return wait_for_session(self.process.pid)

    def list_processes(self) -> list[int]:
        """Returns the ids of all of its processes."""
        return list_session(self.process.pid)


@contextmanager
def serve(
    model: Path,
    folder: Path,
    *,
    environment: dict[str, str | None] | None = None,
    seconds: float = 300,
    **llm: Any,
) -> Iterator[Server]:
    """Starts `vllm serve model` with the options of `LLM(...)` and waits until it is healthy."""
    folder.mkdir(parents=True, exist_ok=True)
    port = find_port()
    words = [Path(sys.executable).parent / "vllm", "serve", model, "--served-model-name", "tiny"]
    words += ["--host", "127.0.0.1", "--port", str(port), *list_options(LLM | llm)]
    settings = make_environment(folder, IN_PROCESSES | (environment or {}))
    log = folder / "server.txt"
    with start_session(words, settings, log) as process:
        server = Server(f"http://127.0.0.1:{port}", process, log)
        wait_until_healthy(server, seconds)
        yield server


def wait_until_healthy(server: Server, seconds: float) -> None:
    """Returns when `/health` answers; fails with the log where the server ends first."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert server.process.poll() is None, server.log()
        with suppress(OSError):
            server.get("/health")
            return
        time.sleep(0.2)
    raise AssertionError(f"not healthy after {seconds} s:\n{server.log()}")


def find_port() -> int:
    """Returns a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def list_options(llm: dict[str, Any]) -> list[str]:
    """Returns the words of the command line for these arguments of `LLM`."""
    words = []
    for name, value in llm.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is False:
            words.append(f"--no-{name.replace('_', '-')}")
        else:
            words += [option, value if isinstance(value, str) else json.dumps(value)]
    return words
