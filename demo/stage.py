"""What the demo stands on: the daemon, fluxctl, a watcher of the ledger, and the list of claims.

Nothing here knows the story. Everything that is started is ended, by its process id, and what
cannot be cleaned up is said.
"""

import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

READY_SECONDS_MAX = 20
STOP_SECONDS_MAX = 15
SWEEP_SECONDS_MAX = 5
POLL_SECONDS = 0.02
CALL_SECONDS_MAX = 60
OUTPUT_LINES_SHOWN = 14
COMMAND_CHARS_SHOWN = 110


class Failed(Exception):
    """The demo cannot go on."""


def clean_environment():
    """The environment without what would point the programs at another daemon or another build."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FLUXVM_")}


def processes():
    """Every process of the machine, those in sandboxes too: its id and its words."""
    for cmdline in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = cmdline.read_bytes().decode(errors="replace").split("\0")[:-1]
        except OSError:
            continue  # it ended while we looked
        yield int(cmdline.parent.name), words


def running(wanted):
    """Whether a process with exactly these words runs."""
    return any(words == wanted for _, words in processes())


def until(holds, seconds_max):
    """Waits until it holds; the answer is whether it did in time."""
    deadline = time.monotonic() + seconds_max
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return held


class Screen:
    """Prints what happens. Colours only on a terminal, and never with NO_COLOR set."""

    def __init__(self):
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self.colour = sys.stdout.isatty() and not plain

    def paint(self, code, text):
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text

    def heading(self, text):
        print(f"\n{self.paint('1', text)}", flush=True)

    def say(self, text):
        print(text, flush=True)

    def command(self, words):
        """A command as a shell would show it while it is typed."""
        first, *rest = " ".join(words).splitlines()
        print(self.paint("36", f"$ {self.cut(first)}"))
        for line in rest:
            print(self.paint("36", f"> {self.cut(line)}"))
        sys.stdout.flush()

    @staticmethod
    def cut(line):
        return line if len(line) <= COMMAND_CHARS_SHOWN else line[:COMMAND_CHARS_SHOWN] + "…"

    def output(self, text, lines_max=OUTPUT_LINES_SHOWN):
        lines = text.rstrip("\n").splitlines() if text.strip() else []
        for line in lines[:lines_max]:
            print(f"    {line}")
        if len(lines) > lines_max:
            print(self.paint("2", f"    … {len(lines) - lines_max} more lines"))
        sys.stdout.flush()


class Claims:
    """What must have been true. A claim that does not hold ends the demo at once."""

    def __init__(self, screen):
        self.screen = screen
        self.held = []
        self.broken = []

    def check(self, claim, holds, facts=""):
        (self.held if holds else self.broken).append(claim)
        mark = self.screen.paint("32", "✓") if holds else self.screen.paint("31", "✗")
        self.screen.say(f"  {mark} {claim}")
        if not holds:
            raise Failed(f"{claim}: {facts}" if facts else claim)


class Daemon:
    """A daemon, and a folder of its own for all that is written, which goes at the end."""

    def __init__(self, bin_dir):
        self.program = bin_dir / "fluxvmd"
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="fluxvm-demo-"))
        self.state = self.folder / "state"
        self.log_path = self.folder / "daemon.log"
        self.process = None
        self.url = None

    def start(self):
        """Starts it on a free port and waits until it says that it answers."""
        command = [
            self.program,
            "--state-dir",
            self.state,
            "--listen",
            "127.0.0.1:0",
            "--ready-json",
        ]
        with open(self.log_path, "ab") as log:
            # A session of its own: Ctrl-C is for the demo, which then ends the daemon itself.
            self.process = subprocess.Popen(
                [str(word) for word in command],
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        ready, _, _ = select.select([self.process.stdout], [], [], READY_SECONDS_MAX)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            raise Failed(f"the daemon did not get ready; its last words:\n{self.last_words()}")
        self.url = json.loads(line)["url"]
        return self.url

    def kill(self):
        """kill -9, as a crash would."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def stop(self):
        """Asks it to end; the answer is its exit code."""
        self.process.terminate()
        try:
            code = self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failed("the daemon did not end when asked to") from None
        self.process.stdout.close()
        return code

    def runs(self):
        return self.process is not None and self.process.poll() is None

    def remains(self):
        """What is left of sandboxes on this machine, once the daemon had a moment to sweep."""
        until(lambda: not self.look_around(), SWEEP_SECONDS_MAX)
        return self.look_around()

    def look_around(self):
        sandboxes = self.state / "sandboxes"
        # What begins with a dot belongs to no sandbox, but for what is still being removed.
        names = [entry.name for entry in sandboxes.iterdir()]
        names = [name for name in names if name[0] != "." or name.startswith(".trash")]
        state = str(self.state)
        mounts = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
        mounted = [line.split()[4] for line in mounts if state in line]
        own = (self.process.pid, os.getpid())
        left = [words for pid, words in processes() if state in " ".join(words) and pid not in own]
        return names + mounted + left

    def last_words(self, lines=12):
        try:
            text = self.log_path.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def remove_folder(self):
        """Removes all of it; the answer is what could not be removed."""

        def writable_then_again(function, path, _error):
            os.chmod(os.path.dirname(path), 0o700)
            os.chmod(path, 0o700)
            function(path)

        try:
            shutil.rmtree(self.folder, onerror=writable_then_again)
        except OSError as error:
            return f"{self.folder} could not be removed: {error}"
        return ""


class Fluxctl:
    """The real command line, pointed at the demo's daemon."""

    def __init__(self, bin_dir, daemon, screen):
        self.program = bin_dir / "fluxctl"
        self.screen = screen
        self.environment = clean_environment() | {"FLUXVM_STATE_DIR": str(daemon.state)}

    def popen(self, *words, **options):
        return subprocess.Popen(
            [str(self.program), *words], env=self.environment, stdin=subprocess.DEVNULL, **options
        )

    def run(self, *words, show=None, lines_max=OUTPUT_LINES_SHOWN):
        """Runs it as a person would see it: the command, then its output, indented."""
        self.screen.command(["fluxctl", *(show or words)])
        done = self.quiet(*words)
        self.screen.output(done.stdout, lines_max)
        self.screen.output(done.stderr, lines_max)
        return done

    def quiet(self, *words):
        return subprocess.run(
            [str(self.program), *words],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CALL_SECONDS_MAX,
            check=False,
        )

    def json(self, *words):
        """The answer as data; a failure ends the demo."""
        done = self.quiet(*words, "--json")
        if done.returncode != 0:
            raise Failed(f"fluxctl {' '.join(words)} ended with {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)


class Watcher:
    """Follows a session's events, over every restart of the daemon, and keeps them in order."""

    def __init__(self, fluxctl, session):
        self.events = []
        self.changed = threading.Condition()
        self.process = fluxctl.popen(
            "agent", "events", session, "--follow", "--json",
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.events.append(json.loads(line))
                self.changed.notify_all()

    def wait_for(self, wanted, seconds_max):
        """The first event for which `wanted` holds; None when it does not come in time."""
        deadline = time.monotonic() + seconds_max
        with self.changed:
            while True:
                for event in self.events:
                    if wanted(event):
                        return event
                left = deadline - time.monotonic()
                if left <= 0 or not self.changed.wait(left):
                    return None

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()
