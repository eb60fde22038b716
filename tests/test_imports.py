"""What may import what, and what an import costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import srt_peft

ROOT = Path(srt_peft.__file__).parent
# Each room may import from itself and from those before it; the rooms of one tuple do not know each other.
ORDER = [
    ("errors",),
    ("review",),
    ("data",),
    ("corpora",),
    ("training",),
    ("lifecycle", "evaluation", "report"),
    ("demo", "integrations"),
    ("commands",),
    ("cli",),
    ("__main__",),
]
FLOOR = {room: floor for floor, rooms in enumerate(ORDER) for room in rooms}


def room_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path):
    """The rooms of srt_peft that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "srt_peft" else [node.module]
            )
        for name in names:
            parts = name.split(".")
            if parts[0] == "srt_peft" and len(parts) > 1:
                yield parts[1]


FILES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_one_way(path):
    """Inward only: errors <- review <- data <- corpora <- training <- …; rooms on one floor are strangers."""
    mine = room_of(path)
    assert mine in FLOOR, f"{mine} has no place in the order of rooms"
    for other in imports(path):
        assert other == mine or FLOOR[other] < FLOOR[mine], f"{mine} imports {other}"


def test_the_walk_sees_what_it_should():
    """The test above would notice: the review room does import errors, and nothing else of ours."""
    seen = {other for path in FILES if room_of(path) == "review" for other in imports(path)}
    assert seen == {"errors", "review"}


LOADED = "import sys; import {0}; print(*[m for m in {1} if m in sys.modules])"


@pytest.mark.parametrize("module", ["srt_peft", "srt_peft.review", "srt_peft.corpora"])
def test_importing_loads_neither_torch_nor_transformers(module):
    heavy = ["torch", "transformers", "peft", "accelerate", "datasets", "bitsandbytes"]
    heavy += ["sentencex", "datasketch", "mwparserfromhell"]
    code = LOADED.format(module, heavy)
    out = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""


def test_importing_srt_peft_does_not_even_load_numpy():
    code = LOADED.format("srt_peft", ["numpy"])
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""


def test_every_public_name_is_there():
    """The lazy table, the names for type checkers, and what the modules hold agree."""
    for name in srt_peft.__all__:
        assert getattr(srt_peft, name) is not None
    assert dir(srt_peft) == sorted(srt_peft.__all__)
    tree = ast.parse((ROOT / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.asname for node in block.body for alias in node.names}
    assert typed == set(srt_peft.__all__) - {"__version__"}
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        srt_peft.nonsense  # noqa: B018
