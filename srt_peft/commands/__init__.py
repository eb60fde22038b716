"""The commands, a file each, and `COMMANDS`: all that the command line can do.

A command stands beside its arguments. To add one: a file here that ends in `COMMAND = Command(…)`, and a line below.
Whatever is slow to import is imported by the function that needs it, so that `srt-peft --help` answers at once.
"""

from __future__ import annotations

from srt_peft.commands import (
    compare,
    corpus_code,
    corpus_qa,
    corpus_review,
    corpus_text,
    corpus_wikipedia,
    demo,
    env,
    evaluate,
    forget,
    inspect,
    merge,
    next_,
    plan,
    push,
    recipes,
    report,
    train,
)

COMMANDS = {
    "demo": demo.COMMAND,
    "plan": plan.COMMAND,
    "train": train.COMMAND,
    "next": next_.COMMAND,
    "eval": evaluate.COMMAND,
    "compare": compare.COMMAND,
    "report": report.COMMAND,
    "inspect": inspect.COMMAND,
    "forget": forget.FORGET,
    "audit": forget.AUDIT,
    "merge": merge.COMMAND,
    "push": push.COMMAND,
    "recipes list": recipes.LIST,
    "recipes show": recipes.SHOW,
    "recipes copy": recipes.COPY,
    "corpus text": corpus_text.COMMAND,
    "corpus code": corpus_code.COMMAND,
    "corpus wikipedia": corpus_wikipedia.COMMAND,
    "corpus qa": corpus_qa.COMMAND,
    "corpus review": corpus_review.COMMAND,
    "env": env.COMMAND,
}
GROUPS = {
    "recipes": "recipes to start from: list, show, copy",
    "corpus": "old and new corpora from two snapshots: text, wikipedia, code; questions on them: qa, review",
}
