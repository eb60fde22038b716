"""`srt-peft recipes`: those that come with it, to be listed, shown and copied."""

from __future__ import annotations

from pathlib import Path

import srt_peft
from srt_peft.commands.command import Arguments, Command, say
from srt_peft.errors import OptionError, did_you_mean


def shipped() -> dict[str, Path]:
    """The recipes by name: inside an installed package, beside the package in a checkout."""
    package = Path(srt_peft.__file__).resolve().parent
    for folder in (package / "recipes", package.parent / "recipes"):
        if (folder / "tiny_cpu.yaml").is_file():
            return {
                path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))
            }
    return {}


def check_is_here(recipe: str) -> None:
    """Tell whoever names one of ours, which was not copied yet, how to have it."""
    name = recipe.removesuffix(".yaml")
    if not Path(recipe).exists() and name in shipped():
        remedy = (
            f"no such file here, but a recipe that comes with srt-peft: `srt-peft recipes copy {name}`, edit, train"
        )
        raise OptionError(f"the recipe {recipe}", [remedy])


def _named(name: str) -> Path:
    known = shipped()
    wanted = name.removesuffix(".yaml")
    if wanted not in known:
        names = ", ".join(known) or "none: this installation of srt-peft lacks them"
        raise OptionError("recipes", [f"{name!r} is no recipe{did_you_mean(wanted, known)}; known are {names}"])
    return known[wanted]


def _list(_args: Arguments) -> None:
    for name, path in sorted(shipped().items(), key=lambda item: ("/" in item[0], item[0])):
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        say(f"{name:26} {first.lstrip('# ')}")


def _show(args: Arguments) -> None:
    say(_named(args.name).read_text(encoding="utf-8"), end="")


def _copy(args: Arguments) -> None:
    source = _named(args.name)
    target = Path(args.path or source.name)
    if target.is_dir():
        target /= source.name
    try:
        with target.open("x", encoding="utf-8") as copy:
            copy.write(source.read_text(encoding="utf-8"))
    except FileExistsError:
        raise OptionError("recipes copy", [f"{target} is there already: name another path, or remove it"]) from None
    except OSError as error:
        raise OptionError("recipes copy", [f"{target}: {error.strerror}: expected a path to write to"]) from None
    say(f"{target} is yours to edit. Its first lines say how to launch it.")


_NAME = ("name", {"metavar": "NAME", "help": "as `srt-peft recipes list` names it"})

LIST = Command(_list, "name the recipes that come with srt-peft", "srt-peft recipes list")
SHOW = Command(_show, "print a recipe", "srt-peft recipes show tiny_cpu", (_NAME,))
COPY = Command(
    _copy,
    "copy a recipe, to be edited; nothing is ever overwritten",
    "srt-peft recipes copy tinyllama_1b_qlora weekly.yaml",
    (_NAME, ("path", {"metavar": "PATH", "nargs": "?", "help": "a file or a folder; here, under its own name"})),
)
