"""Real git repositories with the dates that a test wants, and code to put into them."""

import os
import random
import subprocess

VERBS = (
    "read",
    "write",
    "open",
    "close",
    "merge",
    "split",
    "parse",
    "render",
    "fetch",
    "store",
    "sort",
    "find",
    "join",
)
NOUNS = (
    "row",
    "page",
    "field",
    "token",
    "batch",
    "index",
    "node",
    "cache",
    "queue",
    "header",
    "record",
    "buffer",
    "table",
)

MIT = """MIT License

Copyright (c) 2020 Somebody

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
"""
HEADER = "".join(f"# {line}\n" for line in MIT.splitlines())


def python(seed, functions=8):
    """A module that is like no other seed's."""
    rng = random.Random(seed)
    parts = [f'"""Module {seed}: {rng.choice(VERBS)} each {rng.choice(NOUNS)}."""\n']
    for i in range(functions):
        verb, noun, other = rng.choice(VERBS), rng.choice(NOUNS), rng.choice(NOUNS)
        name = f"{verb}_{noun}_{rng.randrange(999)}"
        steps = [
            f"    {rng.choice(NOUNS)}_{rng.randrange(99)} = {rng.choice(VERBS)}({noun}, {other}, x_{rng.randrange(99)})"
            for _ in range(rng.randint(3, 6))
        ]
        parts.append("\n".join([f"def {name}({noun}, {other}):", *steps, f"    return {noun}_{i}"]) + "\n")
    return "\n\n".join(parts)


def git(repo, *words, when="2021-05-05T12:00:00Z", authored=None):
    """Run git there, as nobody in particular, at that time."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
        "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@b",
        "GIT_AUTHOR_DATE": authored or when, "GIT_COMMITTER_DATE": when,
    }  # fmt: skip
    command = ["git", "-C", str(repo), "-c", "protocol.file.allow=always", *words]
    return subprocess.run(command, env=env, capture_output=True, check=True).stdout.decode().strip()


def commit(repo, when, files, *, authored=None):
    """Commit these files (path -> text or bytes; None removes) at a day, in a repository that is made if need be."""
    if not (repo / ".git").exists():
        repo.mkdir(parents=True)
        git(repo, "init", "-q", "-b", "main")
    for path, text in files.items():
        target = repo / path
        if text is None:
            target.unlink()
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text if isinstance(text, bytes) else text.encode())
    git(repo, "add", "-A", "-f")
    times = [f"{day}T12:00:00Z" if day else None for day in (when, authored)]
    git(repo, "commit", "-q", "--allow-empty", "-m", "change", when=times[0], authored=times[1])
    return repo


def modules(first, count, folder="src"):
    """So many different modules: path -> text."""
    return {f"{folder}/module_{seed}.py": python(seed) for seed in range(first, first + count)}
