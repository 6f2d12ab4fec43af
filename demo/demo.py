#!/usr/bin/python3
"""The main job of fluxvm, played with the real programs on a real bug.

An agent's steps are played in a session: look around, reproduce, repair, test, commit. Then what
the ledger is for: the timeline, a crash in the middle of a step, a replay, an export that is
verified without the daemon, and a forged export that is found out. Every claim is checked; the exit
code is 0 only when all of them held. What was started is ended, and nothing is left behind.
"""

import argparse
import base64
import json
import pathlib
import shlex
import signal
import sys
import time
from subprocess import DEVNULL

import subject as subjects
from stage import Claims, Daemon, Failed, Fluxctl, Screen, Watcher, running, until

PYTHON = "PYTHONPATH=src /usr/bin/python3 -B"
# A command may have 128 KiB; base64 of this many characters leaves room for the rest of the line.
CHUNK_CHARS = 90_000
# BLAKE3 of "done\n": the ledger holds digests of output.
DONE_BLAKE3 = "0f933b712ccfac20af5ad453a258107dac0a8e79bdafa044a8b2e33e2232cad2"
DEMO_SECONDS_MAX = 60
BRIEF_CHARS = 72


class Demo:
    """The story, told in order by `play`."""

    def __init__(self, bin_dir):
        self.screen = Screen()
        self.claims = Claims(self.screen)
        self.daemon = Daemon(bin_dir)
        self.fluxctl = Fluxctl(bin_dir, self.daemon, self.screen)
        self.sessions = []
        self.watcher = None
        self.session = None
        self.subject = None

    def play(self):
        self.open_session()
        self.repair()
        self.show_timeline()
        self.crash()
        self.replay()
        export = self.export()
        self.clear_away()
        self.verify(export)

    # -- the session ---------------------------------------------------------------------------

    def open_session(self):
        self.subject = subjects.find()
        self.screen.heading(f"The task: {self.subject.title}")
        if self.subject.note:
            self.screen.say(self.subject.note)
        url = self.daemon.start()
        self.screen.say(
            f"fluxvmd answers at {url}, process {self.daemon.process.pid}, "
            f"state in {self.daemon.state}"
        )
        self.screen.heading("1. A session: a sandbox of its own, and a ledger that writes along")
        self.session = self.new_session("demo-agent")
        self.watcher = Watcher(self.fluxctl, self.session)

    def new_session(self, agent):
        self.screen.command(["fluxctl", "agent", "run", agent, "--ttl-seconds", "30m"])
        started = time.monotonic()
        session = self.fluxctl.json("agent", "run", agent, "--ttl-seconds", "30m")
        millis = (time.monotonic() - started) * 1000
        self.sessions.append(session["id"])
        self.screen.output(
            f"session {session['id']}, {session['backend']}, ready in {millis:.0f} ms"
        )
        return session["id"]

    def step(self, line, show=None, may_fail=False):
        """One step of the agent: a shell line in the session."""
        words = ["agent", "exec", self.session, "--", line]
        shown = ["agent", "exec", self.session[:8], "--", show or line]
        done = self.fluxctl.run(*words, show=shown)
        if done.returncode != 0 and not may_fail:
            raise Failed(f"the step ended with {done.returncode}: {line[:200]}")
        return done.stdout

    # -- the agent's work ----------------------------------------------------------------------

    def repair(self):
        task = self.subject
        self.screen.heading("2. The agent works: look around, reproduce, repair, test, commit")
        self.bring_in(task.archive)
        self.step(
            "git init -q -b main . && git config user.name Agent "
            "&& git config user.email agent@example.invalid"
        )
        self.step("git add -A && git commit -qm 'As released' && ls")
        self.step(f"grep -n {shlex.quote(task.look)} {task.module}")
        self.step(f"grep -nF -B2 {shlex.quote(task.broken)} {task.module}")
        self.step(f"cat > reproduce.py <<'EOF'\n{task.reproduce}EOF")
        before = self.step(f"{PYTHON} reproduce.py").strip()
        self.claims.check("the bug is there: 345 ms is serialised as 344", before == "344", before)
        self.step(self.edit())
        self.step("git diff --stat && git diff -U0 | tail -2")
        after = self.step(f"{PYTHON} reproduce.py").strip()
        self.claims.check("the repair works: 345 ms is serialised as 345", after == "345", after)
        tests = " ".join(task.tests)
        ran = self.step(f"{PYTHON} -m pytest -q -o addopts= -p no:cacheprovider -W ignore {tests}")
        passed = " passed" in ran and "failed" not in ran
        self.claims.check(f"the package's own tests pass ({tests})", passed, ran)
        self.step("rm reproduce.py && git commit -qam 'TimeDelta: count whole units exactly'")
        log = self.step("git log --oneline && git status --short")
        committed = len(log.strip().splitlines()) == 2 and "count whole units" in log
        self.claims.check("the repair is committed, and nothing else lies around", committed, log)

    def bring_in(self, archive):
        """The archive goes in by commands, so that a replay brings it in too."""
        text = base64.b64encode(archive).decode()
        for start in range(0, len(text), CHUNK_CHARS):
            chunk = text[start : start + CHUNK_CHARS]
            self.step(
                f"printf %s {chunk} >> .archive",
                show=f"printf %s {chunk[:12]}… >> .archive   # {len(chunk)} characters of base64",
            )
        self.step("base64 -d .archive | tar xz --strip-components=1 --no-same-owner && rm .archive")

    def edit(self):
        """An edit as agents make it: replace exactly one place, or fail."""
        task = self.subject
        return (
            f"/usr/bin/python3 - <<'EOF'\n"
            f"import pathlib\n"
            f"file = pathlib.Path({task.module!r})\n"
            f"text = file.read_text()\n"
            f"assert text.count({task.broken!r}) == 1\n"
            f"file.write_text(text.replace({task.broken!r}, {task.fixed!r}))\n"
            f"EOF"
        )

    def show_timeline(self):
        self.screen.heading("3. The timeline: every step, from the ledger")
        shown = ["agent", "timeline", self.session[:8]]
        self.fluxctl.run("agent", "timeline", self.session, "--table", show=shown, lines_max=60)

    # -- the crash -----------------------------------------------------------------------------

    def crash(self):
        self.screen.heading("4. A crash: kill -9 of the daemon in the middle of a step")
        nap = ["sleep", "3.25"]
        line = f"{' '.join(nap)}; echo done"
        self.screen.command(["fluxctl", "agent", "exec", self.session[:8], "--", line, "  &"])
        caller = self.fluxctl.popen(
            "agent", "exec", self.session, "--", line, stdout=DEVNULL, stderr=DEVNULL
        )
        begun = self.watcher.wait_for(is_kind("exec.started", line), 10)
        # Between the intent in the ledger and the command in the sandbox lies a moment; in the
        # middle of the step both are there.
        if begun is None or not until(lambda: running(nap), 10):
            caller.kill()
            raise Failed("the step did not begin")
        pid = self.daemon.process.pid
        self.screen.command(["kill", "-9", str(pid), f"  # seq {begun['seq']}: the step runs"])
        self.daemon.kill()
        caller.wait(10)
        self.screen.command(["fluxvmd", "--state-dir", str(self.daemon.state)])
        self.daemon.start()
        status = self.fluxctl.json("agent", "get", self.session)["status"]
        self.claims.check("after the restart the session is running", status == "running", status)
        ended = self.watcher.wait_for(lambda event: event["data"].get("op") == begun["seq"], 20)
        self.screen.output(json.dumps(ended and ended["data"])[:300])
        data = ended["data"] if ended else {}
        went_on = data.get("exit_code") == 0 and data["stdout"]["blake3"] == DONE_BLAKE3
        self.claims.check(
            "the step went on: exit 0 and `done` are in the ledger", went_on, str(data)
        )
        again = self.step("echo still here")
        self.claims.check("the session takes the next command", again == "still here\n", again)
        ledger = self.fluxctl.json("agent", "events", self.session)["ledger"]
        last = ledger[-1]["seq"]
        self.watcher.wait_for(lambda event: event["seq"] == last, 10)
        followed = [event["seq"] for event in self.watcher.events]
        exact = followed == [event["seq"] for event in ledger]
        self.claims.check("`events --follow` saw every event once, over the crash", exact)
        self.watcher.stop()

    # -- replay --------------------------------------------------------------------------------

    def replay(self):
        self.screen.heading("5. Replay: the same commands, in a second session")
        target = self.new_session("demo-replay")
        words = ["agent", "replay", self.session, "--target", target]
        shown = ["agent", "replay", self.session[:8], "--target", target[:8]]
        self.screen.command(["fluxctl", *shown])
        answer = self.fluxctl.json(*words)
        steps = answer["steps"]
        different = []
        for step in steps:
            streams = [name for name in ("stdout", "stderr") if not step[f"same_{name}"]]
            if streams:
                different.append(
                    f"seq {step['seq']}, {' and '.join(streams)}: {brief(step['command'])}"
                )
        same = sum(step["same_exit_code"] is True for step in steps)
        self.screen.output(f"{len(steps)} steps, {same} with the recorded exit code")
        self.screen.output(
            "other output, where times and commit ids are printed:" if different else ""
        )
        self.screen.output("\n".join(f"  {line}" for line in different), lines_max=40)
        ran = len([event for event in self.events(self.session) if event["kind"] == "exec"])
        all_same = same == len(steps) == ran
        self.claims.check(f"all {ran} steps ended with the recorded exit code", all_same)
        reproduced = [
            s for s in steps if s["command"].endswith("reproduce.py") and s["same_stdout"]
        ]
        self.claims.check("the replay saw 344 and then 345 too", len(reproduced) == 2)

    def events(self, session):
        return self.fluxctl.json("agent", "events", session)["ledger"]

    # -- proof ---------------------------------------------------------------------------------

    def export(self):
        self.screen.heading("6. Proof: export, verify without the daemon, forge, verify again")
        file = self.daemon.folder / "session.jsonl"
        shown = ["agent", "export", self.session[:8], "--out", str(file)]
        words = ["agent", "export", self.session, "--out", str(file), "--table"]
        done = self.fluxctl.run(*words, show=shown)
        if done.returncode != 0:
            raise Failed("the export failed")
        return file

    def clear_away(self):
        """Deletes the sessions and ends the daemon: the export must speak for itself."""
        while self.sessions:
            session = self.sessions[-1]
            done = self.fluxctl.run(
                "agent", "rm", session, "--table", show=["agent", "rm", session[:8]]
            )
            if done.returncode != 0:
                raise Failed(f"session {session} could not be deleted")
            self.sessions.pop()
        left = self.daemon.remains()
        self.claims.check("deleted sessions leave no folder, mount or process", not left, str(left))
        code = self.daemon.stop()
        self.claims.check("the daemon ends cleanly when asked to", code == 0, str(code))

    def verify(self, export):
        done = self.fluxctl.run("ledger", "verify", str(export), "--table")
        self.claims.check("the export verifies, offline", done.returncode == 0)
        seq, was, now = flip_one_byte(export)
        self.screen.say(f"One byte of event {seq} is changed in the file: {was!r} becomes {now!r}.")
        done = self.fluxctl.run("ledger", "verify", str(export), "--table")
        report = json.loads(self.fluxctl.quiet("ledger", "verify", str(export), "--json").stdout)
        # A fault of the file as a whole names no event.
        named = {fault["seq"] for fault in report["faults"] if fault["seq"]}
        found = done.returncode == 1 and named == {seq}
        self.claims.check("the forgery is found, and the event is named", found, str(named))

    # -- the end -------------------------------------------------------------------------------

    def clean_up(self):
        """Ends what still runs and removes what is left, also after a failure in the middle."""
        if self.watcher:
            self.watcher.stop()
        troubles = []
        try:
            if self.sessions and not self.daemon.runs():
                self.daemon.start()
            for session in self.sessions:
                if self.fluxctl.quiet("agent", "rm", session).returncode != 0:
                    troubles.append(f"session {session} could not be deleted")
            if self.daemon.runs():
                self.daemon.stop()
        except Failed as error:
            troubles.append(str(error))
        trouble = "" if troubles else self.daemon.remove_folder()
        return troubles + ([trouble] if trouble else [])


def is_kind(kind, command):
    return lambda event: event["kind"] == kind and event["data"].get("command") == command


def brief(command):
    line = command.splitlines()[0]
    return line if len(line) <= BRIEF_CHARS else line[:BRIEF_CHARS] + "…"


def flip_one_byte(file):
    """Changes one letter inside a recorded command, in the middle of the file."""
    lines = file.read_bytes().splitlines(keepends=True)
    events = [i for i, line in enumerate(lines) if b'"kind":"exec"' in line]
    index = events[len(events) // 2]
    line = bytearray(lines[index])
    at = line.index(b'"command":"') + len(b'"command":"')
    while not chr(line[at]).isalpha():
        at += 1
    was, now = chr(line[at]), chr(line[at] ^ 1)
    line[at] ^= 1
    lines[index] = bytes(line)
    file.write_bytes(b"".join(lines))
    return json.loads(lines[index])["seq"], was, now


def interrupted(_signal, _frame):
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="folder of the programs")
    options = parser.parse_args()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, interrupted)
    started = time.monotonic()
    demo = Demo(options.bin)
    problem = ""
    try:
        demo.play()
    except Failed as error:
        problem = str(error)
    except KeyboardInterrupt:
        problem = "interrupted"
    finally:
        # A second Ctrl-C must not leave behind what the first one is clearing away.
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.SIG_IGN)
        words = demo.daemon.last_words() if problem else ""
        troubles = demo.clean_up()
    seconds = time.monotonic() - started
    return report(demo, problem, words, troubles, seconds)


def report(demo, problem, words, troubles, seconds):
    screen = demo.screen
    screen.heading("What was shown")
    for claim in demo.claims.held:
        screen.say(f"  {screen.paint('32', '✓')} {claim}")
    for claim in demo.claims.broken:
        screen.say(f"  {screen.paint('31', '✗')} {claim}")
    for trouble in troubles:
        screen.say(f"  {screen.paint('31', '✗')} cleaning up: {trouble}")
    if problem:
        screen.say(f"\nThe demo FAILED after {seconds:.1f} s: {problem}")
        if words and problem != "interrupted":
            screen.say("The daemon's last words:")
            screen.output(words)
    elif not troubles:
        screen.say(f"\nAll {len(demo.claims.held)} claims held, in {seconds:.1f} s.")
        if seconds > DEMO_SECONDS_MAX:
            screen.say(f"That is longer than the {DEMO_SECONDS_MAX} s that it should take.")
    return 1 if problem or troubles else 0


if __name__ == "__main__":
    sys.exit(main())
