"""The guide's commands run as they are printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.corpora.qa import world

GUIDE = Path(__file__).parents[3] / "docs" / "corpus-questions.md"


def test_the_first_commands_of_the_guide_run(tmp_path):
    world.build(tmp_path / "corpora" / "july")
    first, *_ = re.findall(r"```bash\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    command = f'srt-peft() {{ {sys.executable} -m srt_peft "$@"; }}\n'
    done = subprocess.run(
        ["bash", "-euc", command + first], cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "new: 10 of 10 questions" in done.stdout
    assert "srt-peft corpus review corpora/july/questions.jsonl" in done.stdout
