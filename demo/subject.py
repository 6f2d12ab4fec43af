"""What the demo repairs: marshmallow 3.13.0 as released, or a small program with the same bug.

The source archive is fetched with pip into a cache outside the checkout. Its digest is pinned, and
pip checks it before it looks inside.
"""

import dataclasses
import hashlib
import io
import os
import pathlib
import subprocess
import tarfile
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
RELEASE = "marshmallow==3.13.0"
ARCHIVE = "marshmallow-3.13.0.tar.gz"
ARCHIVE_SHA256 = "c67929438fd73a2be92128caa0325b1b5ed8b626d91a094d2f7f2771bf1f1c0e"
# Without a network pip would retry for minutes; the demo has something else to show by then.
FETCH_SECONDS_MAX = 40


@dataclasses.dataclass(frozen=True)
class Subject:
    """A program with a bug, and what it takes to see it and to repair it."""

    title: str
    note: str  # said first; empty when there is nothing to say
    archive: bytes  # .tar.gz with one folder on top
    module: str  # the file with the bug
    look: str  # a pattern that finds the place
    broken: str
    fixed: str
    reproduce: str
    tests: tuple[str, ...]


BROKEN = "return int(value.total_seconds() / base_unit.total_seconds())"
FIXED = "return value // base_unit  # whole units, counted without floating point"

MARSHMALLOW = Subject(
    title="marshmallow 3.13.0: TimeDelta(precision='milliseconds') serialises 345 ms as 344",
    note="",
    archive=b"",
    module="src/marshmallow/fields.py",
    look="class TimeDelta",
    broken=BROKEN,
    fixed=FIXED,
    reproduce="""\
from datetime import timedelta

from marshmallow.fields import TimeDelta

field = TimeDelta(precision="milliseconds")
print(field.serialize("t", {"t": timedelta(milliseconds=345)}))
""",
    tests=("tests/test_fields.py", "tests/test_serialization.py"),
)

FALLBACK = Subject(
    title="tinyfields, a small program with the bug of marshmallow 3.13.0",
    note="",
    archive=b"",
    module="src/tinyfields/fields.py",
    look="class TimeDelta",
    broken=BROKEN,
    fixed=FIXED,
    reproduce="""\
from datetime import timedelta

from tinyfields.fields import TimeDelta

print(TimeDelta(precision="milliseconds").serialize(timedelta(milliseconds=345)))
""",
    tests=("tests/test_fields.py",),
)


def find():
    """The real program if it can be had, else the one that ships with the demo, saying why."""
    try:
        return dataclasses.replace(MARSHMALLOW, archive=fetch())
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        note = (
            f"{RELEASE} could not be fetched ({error}).\n"
            "A small program that ships with the demo takes its place, with the same bug."
        )
        return dataclasses.replace(FALLBACK, archive=pack(HERE / "fallback"), note=note)


def fetch():
    """The bytes of the release's source archive, from the cache or through pip."""
    home_cache = pathlib.Path(os.path.expanduser("~/.cache"))
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or home_cache) / "fluxvm" / "demo"
    cache.mkdir(parents=True, exist_ok=True)
    kept = cache / ARCHIVE
    if not (kept.exists() and digest(kept.read_bytes()) == ARCHIVE_SHA256):
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            download(pathlib.Path(folder))
            os.replace(pathlib.Path(folder) / ARCHIVE, kept)
    content = kept.read_bytes()
    if digest(content) != ARCHIVE_SHA256:
        raise ValueError("the archive is not the released one")
    return content


def download(folder):
    """Lets pip fetch the source archive. It asks the archive what it is, with the setuptools that
    are here: building an environment for that would fetch more."""
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{RELEASE} --hash=sha256:{ARCHIVE_SHA256}\n")
    command = [
        "/usr/bin/python3", "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--retries", "1",
        "--timeout", "10", "--dest", str(folder), "--requirement", str(wanted),
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise ValueError(lines[-1] if lines else f"pip ended with {done.returncode}")


def pack(folder):
    """The folder as a .tar.gz with one folder on top, as a source release is."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(folder, arcname="tinyfields", filter=without_leftovers)
    return packed.getvalue()


def without_leftovers(entry):
    """Leaves out what Python left behind."""
    return None if "__pycache__" in entry.name else entry


def digest(content):
    """SHA-256, hex."""
    return hashlib.sha256(content).hexdigest()
