"""`srt-peft corpus text` as tests give it, and two folders of which they make a corpus."""

import json
import os
import subprocess
import sys
from pathlib import Path

from srt_peft import cli
from tests.corpora.worlds import prose

ROOT = Path(__file__).parents[2]


def run(*words, code=0):
    """The command in a process of its own: what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "srt_peft", "corpus", "text", *map(str, words)],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def text(*words):
    """The same here, where no process is needed: it is faster."""
    assert cli.main(["corpus", "text", "--workers", "1", *map(str, words)]) == 0


def refused(capsys, *words):
    assert cli.main(["corpus", "text", *map(str, words)]) == 2
    return capsys.readouterr().err


def rows(out, name):
    return [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]


def write(folder, files):
    for name, said in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(said)


PARAGRAPHS = [prose(seed, 6).strip() for seed in range(4)]
OLD = {
    "guide/a.md": "# Bridges\n\nThe bridge was built in 1650. It is of stone.\n\nPopulation: 5 (2021)\n",
    "moved.md": "# Moved\n\n" + "\n\n".join(PARAGRAPHS),
    "wrapped.rst": "Wrapped\n=======\n\nThe primary road crosses the river at the old bridge, which was built of\n"
    "stone in the year 1650. It fell in the flood of 1871.\n",
    "before.txt": prose(11, 30),
    "gone.txt": "Nobody needs this any more.",
    "same.md": "# Same\n\nNothing changes here.",
    "picture.png": "no text",
}
NEW = {
    "guide/a.md": "# Bridges\n\nThe bridge was built in 1651. It is of stone. It has a lamp.\n\nPopulation: 7 (2024)\n",
    "moved.md": "# Moved\n\n" + "\n\n".join([PARAGRAPHS[2], *PARAGRAPHS[:2], PARAGRAPHS[3]]),
    "wrapped.rst": "Wrapped\n=======\n\nThe primary road crosses the river at the old\nbridge, which was built of "
    "stone in the\nyear 1650. It fell in the\nflood of 1871.\n",
    "after.txt": prose(11, 30),
    "same.md": "# Same\n\nNothing changes here.",
    "came.md": "# Came\n\nThis page is new.",
}


def jsonl(path, *found):
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


def folders_of(tmp_path):
    """Two of them, as arguments."""
    write(tmp_path / "old", OLD)
    write(tmp_path / "new", NEW)
    return ["--old", tmp_path / "old", "--new", tmp_path / "new", "--held-out", "0"]
