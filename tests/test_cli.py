"""The command line, as a person meets it: run as a process of its own wherever that is what counts."""

import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

import srt_peft
from srt_peft import OptionError, StateError, cli
from srt_peft.commands import env

RECIPES = Path(__file__).parent.parent / "recipes"
GOOD = "model: {base: b}\ndata: {old: a.txt, new: b.txt}\n"


def run(*words, cwd=None, code=0, **env):
    """What the command prints, (stdout, stderr), once it has ended with the expected exit code."""
    home = str(Path(srt_peft.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-m", "srt_peft", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": home, **env},
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


def test_the_command_line_loads_nothing_that_is_slow():
    heavy = ["torch", "transformers", "peft", "accelerate", "datasets", "bitsandbytes", "numpy", "yaml"]
    code = f"import sys, srt_peft.cli as c; c.parser(); print(*[m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


def test_reading_a_recipe_does_not_load_torch():
    code = "import sys, srt_peft.training.recipe; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_commands_and_flags_are_these():
    """Frozen: scripts rely on them. Whoever changes this test breaks them, and says so in the changelog."""
    assert {path: [name for name, _ in command.arguments] for path, command in cli.COMMANDS.items()} == {
        "demo": ["--all", "--seeds", "--tuning", "--supersedes", "--output", "--format", "--quick"],
        "plan": ["recipe", "overrides", "--format"],
        "train": ["recipe", "overrides", "--resume", "--allow-changes", "--output"],
        "eval": [
            "targets",
            "--compare",
            "--suite",
            "--tasks",
            "--base",
            "--precision",
            "--limit",
            "--num-fewshot",
            "--data-root",
            "--batch-tokens",
            "--max-forgetting",
            "--format",
            "--out",
            "--seed",
        ],
        "compare": ["recipe", "overrides", "--schedulers", "--seeds", "--suite", "--output", "--format"],
        "report": ["runs", "--no-text", "--out"],
        "inspect": ["run", "--json", "--example", "--hardest", "--leeches", "--suspend-leeches", "--revive", "--at"],
        "merge": ["run", "--out", "--dtype", "--yes"],
        "next": ["run", "overrides", "--new", "--out", "--old", "--prepare"],
        "push": ["run", "repo", "--with-state", "--public", "--dry-run", "--out", "--message", "--yes"],
        "forget": ["runs", "--ids", "--match", "--source", "--before", "--dry-run", "--yes"],
        "audit": ["run", "--json"],
        "recipes list": [],
        "recipes show": ["name"],
        "recipes copy": ["name", "path"],
        "corpus text": [
            "--old",
            "--new",
            "--repo",
            "--include",
            "--key",
            "--text-column",
            "--title-column",
            "--source-column",
            "--context",
            "--held-out",
            "--language",
            "--workers",
            "--out",
        ],
        "corpus code": [
            "--repos",
            "--out",
            "--old-before",
            "--new-after",
            "--licences",
            "--per-repo",
            "--held-out",
            "--workers",
        ],
        "corpus wikipedia": [
            "--old",
            "--new",
            "--namespaces",
            "--topics",
            "--per-stratum",
            "--engine",
            "--context",
            "--held-out",
            "--workers",
            "--out",
        ],
        "corpus qa": [
            "--from",
            "--n",
            "--out",
            "--endpoint",
            "--model",
            "--api-key-env",
            "--concurrency",
            "--timeout",
            "--seed",
        ],
        "corpus review": ["questions", "--export", "--port"],
        "env": [],
    }
    shown = run("--help")[0]
    assert set(re.findall(r"--[a-z-]+", shown)) == {"--help", "--version", "--debug"}


@pytest.mark.parametrize("command", ["", "recipes", *cli.COMMANDS])
def test_help_teaches(command, capsys):
    """Each command shows what it is for, all its arguments, and an example."""
    with pytest.raises(SystemExit) as left:
        cli.main([*command.split(), "--help"])
    shown = capsys.readouterr().out
    assert left.value.code == 0
    if command in cli.COMMANDS:
        about = cli.COMMANDS[command]
        assert about.example in shown
        for name, settings in about.arguments:
            assert settings.get("metavar", name) in shown
            assert settings["help"].split()[0] in shown
    else:
        assert all(name.split()[-1] in shown for name in cli.COMMANDS if name.startswith(command))


def test_the_version():
    assert run("--version")[0] == f"srt-peft {srt_peft.__version__}\n"


KNOWN = ", ".join(dict.fromkeys(path.split()[0] for path in cli.COMMANDS))
MISTAKES = {
    "no command": ([], "the following arguments are required: COMMAND"),
    "a misspelt command": (
        ["trian"],
        f"'trian' is no command (did you mean 'train'?); known are {KNOWN}",
    ),
    "a command of a later day": (["finish"], f"'finish' is no command; known are {KNOWN}"),
    "a misspelt subcommand": (["recipes", "lst"], "'lst' is no command (did you mean 'list'?)"),
    "a misspelt flag": (
        ["train", "r.yaml", "--resum"],
        "'--resum' is no argument of 'train' (did you mean '--resume'?)",
    ),
    "a choice that is none": (
        ["demo", "--tuning", "lorra"],
        "--tuning = 'lorra' (did you mean 'lora'?): expected one of lora, full, qlora\n`srt-peft demo --help` shows",
    ),
    "a word too many": (["env", "now"], "'now' is no argument of 'env'"),
    "no recipe": (["train"], "the following arguments are required: RECIPE"),
    "a recipe that is not there": (["train", "no.yaml"], "the recipe no.yaml:\n  No such file or directory: expected"),
    "a folder for a recipe": (["train", "."], "Is a directory: expected a YAML file"),
    "a recipe that was not copied": (["train", "tiny_cpu.yaml"], "`srt-peft recipes copy tiny_cpu`"),
    "an unknown recipe": (
        ["recipes", "show", "tinny_cpu"],
        "'tinny_cpu' is no recipe (did you mean 'tiny_cpu'?); known are",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_told_in_words(case, tmp_path):
    words, message = MISTAKES[case]
    out, err = run(*words, cwd=tmp_path, code=2)
    assert out == ""
    assert err.startswith("error: ")
    assert message in err


def test_a_recipe_with_five_faults_tells_all_five(tmp_path):
    (tmp_path / "bad.yaml").write_text(
        "model: {base: b, tuning: qlra}\ndata: {old: a, new: b, max_lenght: 5}\nreview: {old_fraction: 2}\n"
        "training: {batch_size: 0, learning_rate: fast}\n"
    )
    _, err = run("train", "bad.yaml", cwd=tmp_path, code=2)
    assert err.splitlines() == [
        "error: 5 faults in the recipe bad.yaml:",
        "  model.tuning = 'qlra' (did you mean 'qlora'?): expected one of 'qlora', 'lora', 'full'",
        (
            "  data.max_lenght: no such key (did you mean 'max_length'?); known are "
            "old, new, text_column, source_column, id_column, date_column, format, max_length, packing, holdout, "
            "supersedes, clusters"
        ),
        "  review.old_fraction = 2: expected the share of old examples in a draw, from 0 to 1",
        "  training.batch_size = 0: expected the examples of one optimiser step, a whole number, 1 or more",
        "  training.learning_rate = 'fast': expected a number above 0",
    ]
    assert list(tmp_path.iterdir()) == [tmp_path / "bad.yaml"]


@pytest.fixture
def loop(monkeypatch):
    """A stand-in for the loop, which notes how it was called."""
    module = types.ModuleType("srt_peft.training.loop")
    module.calls, module.answer = [], lambda: None

    def train(recipe, **how):
        module.calls.append((recipe, how))
        return module.answer()

    module.train = train
    monkeypatch.setitem(sys.modules, "srt_peft.training.loop", module)
    return module


def test_train_hands_recipe_and_flags_to_the_loop(loop, tmp_path):
    """Overrides may stand on either side of the flags; --output is an override, too, whatever is in its name."""
    (tmp_path / "r.yaml").write_text(GOOD)
    recipe = str(tmp_path / "r.yaml")
    assert cli.main(["train", recipe]) == 0
    words = ["train", recipe, "training.steps=5", "--resume", "model.base=c", "--output", "it's, mine"]
    assert cli.main([*words, "training.seed=3"]) == 0
    (first, how), (second, other) = loop.calls
    assert how == {"resume": False, "allow_changes": False, "evaluate": None}
    assert other == {"resume": True, "allow_changes": False, "evaluate": None}
    assert (first.training.steps, first.model.base, first.output) == ("one_pass", "b", "runs/my-update")
    assert (second.training.steps, second.model.base, second.output) == (5, "c", "it's, mine")
    assert second.training.seed == 3


def failing(error):
    def answer():
        raise error

    return answer


ENDS = {
    "done": (lambda: None, 0, ""),
    "a code of its own": (lambda: 1, 1, ""),
    "a bad option": (
        failing(OptionError("x", ["y = 1: expected 2"])),
        2,
        "error: 1 fault in x:\n  y = 1: expected 2\n",
    ),
    "a damaged state": (failing(StateError("it is torn.")), 1, "error: it is torn.\n"),
    "a full disk": (failing(OSError(28, "No space left", "f")), 1, "error: OSError: [Errno 28] No space left: 'f'\n"),
    "interrupted": (failing(KeyboardInterrupt()), 130, "interrupted\n"),
    "a surprise": (failing(KeyError("k")), 1, "error: KeyError: 'k'\nThis was not foreseen. `--debug` shows where"),
}


@pytest.mark.parametrize("case", ENDS)
def test_how_a_run_ends(case, loop, tmp_path, capsys):
    """The exit code, and what is told on stderr."""
    loop.answer, code, told = ENDS[case]
    (tmp_path / "r.yaml").write_text(GOOD)
    assert cli.main(["train", str(tmp_path / "r.yaml")]) == code
    err = capsys.readouterr().err
    assert err.startswith(told)
    assert bool(err) == bool(told)


@pytest.mark.parametrize("words", [["--debug", "recipes", "show", "x"], ["recipes", "show", "x", "--debug"]])
def test_debug_shows_the_traceback(words):
    with pytest.raises(OptionError):
        cli.main(words)


# --- recipes and env ----------------------------------------------------------------------------------------------


def test_recipes_are_listed_shown_and_copied(tmp_path):
    listed = run("recipes", "list")[0].splitlines()
    assert {line.split()[0] for line in listed} == {
        *(path.stem for path in RECIPES.glob("*.yaml")),
        *(f"accelerate/{path.stem}" for path in (RECIPES / "accelerate").glob("*.yaml")),
    }
    assert all(len(line.split()) > 4 for line in listed)
    text = (RECIPES / "tiny_cpu.yaml").read_text()
    assert run("recipes", "show", "tiny_cpu")[0] == text
    assert "tiny_cpu.yaml is yours to edit" in run("recipes", "copy", "tiny_cpu", cwd=tmp_path)[0]
    run("recipes", "copy", "tiny_cpu.yaml", "mine.yaml", cwd=tmp_path)
    assert (tmp_path / "tiny_cpu.yaml").read_text() == (tmp_path / "mine.yaml").read_text() == text
    (tmp_path / "sub").mkdir()
    run("recipes", "copy", "accelerate/ddp", "sub", cwd=tmp_path)
    assert (tmp_path / "sub/ddp.yaml").exists()


def test_a_copy_overwrites_nothing(tmp_path):
    (tmp_path / "tiny_cpu.yaml").write_text("mine")
    _, err = run("recipes", "copy", "tiny_cpu", cwd=tmp_path, code=2)
    assert "tiny_cpu.yaml is there already: name another path, or remove it" in err
    assert (tmp_path / "tiny_cpu.yaml").read_text() == "mine"
    _, err = run("recipes", "copy", "tiny_cpu", "no/such/folder.yaml", cwd=tmp_path, code=2)
    assert "No such file or directory: expected a path to write to" in err


def test_recipes_are_found_where_a_wheel_puts_them(tmp_path):
    """Inside the package, and none where they were left out."""
    package = Path(srt_peft.__file__).parent
    shutil.copytree(package, tmp_path / "srt_peft", ignore=shutil.ignore_patterns("recipes", "__pycache__"))
    assert (
        "this installation of srt-peft lacks them"
        in run("recipes", "show", "tiny_cpu", cwd=tmp_path, code=2, PYTHONPATH=str(tmp_path))[1]
    )
    shutil.copytree(RECIPES, tmp_path / "srt_peft/recipes")
    listed = run("recipes", "list", cwd=tmp_path, PYTHONPATH=str(tmp_path))[0]
    assert "tiny_cpu " in listed
    assert "accelerate/fsdp2 " in listed


def test_a_reader_who_leaves_early_is_no_error():
    """As in `srt-peft recipes show … | head -1`."""
    code = f"{sys.executable} -m srt_peft recipes show tiny_cpu | true"
    done = subprocess.run(code, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_env_prints_what_a_bug_report_needs(tmp_path):
    out, err = run("env", SRT_PEFT_HOME=str(tmp_path / "not/yet"))
    assert err == ""
    told = dict(line.split(None, 1) for line in out.splitlines())
    assert told["srt-peft"].startswith(srt_peft.__version__)
    for name in (*env.PACKAGES, "CUDA", "GPUs", "OS", "CPU", "RAM"):
        assert told[name]
    assert str(tmp_path / "not/yet") in told["SRT_PEFT_HOME"]
    assert "GiB free" in told["SRT_PEFT_HOME"]


def test_env_tells_of_what_is_missing_and_does_not_fail(monkeypatch, capsys):
    for module in ("torch", "bitsandbytes"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(env, "PACKAGES", ("no-such-package-of-ours",))
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cli.main(["env"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"no-such-package-of-ours not found \(PackageNotFoundError", out)
    assert re.search(r"bitsandbytes import +not found", out)
    assert re.search(r"GPUs +not found", out)
