"""Secrets in text: what looks like a key that somebody could use. A model repeats what it has learnt by heart.

A table of the forms that issuers publish for their keys (the forms of gitleaks, a kept set of rules for another
language; docs/decisions.md says why no library). A form alone is not enough: what must be random has to look so, by
its entropy, and none of the words in it by which people mark an example.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import NamedTuple


class Form(NamedTuple):
    """What a kind of secret looks like; group 1 of the pattern, where there is one, is the secret itself."""

    anchors: tuple[str, ...]
    """Of these, one stands in any text that has such a secret: most texts need no pattern to be tried."""
    pattern: re.Pattern[str]
    entropy: float = 3.0
    """Bits a character, at least."""


def _form(anchors: str, pattern: str, entropy: float = 3.0) -> Form:
    return Form(tuple(anchors.split()), re.compile(pattern), entropy)


FORMS = {
    "private key": _form("-----BEGIN", r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[\s\S]{0,300}?"
                         r"([A-Za-z0-9+/=]{40})"),
    "AWS access key": _form("AKIA ASIA ABIA ACCA", r"\b((?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16})\b"),
    "GitHub token": _form("ghp_ gho_ ghu_ ghs_ ghr_ github_pat_",
                          r"\b(gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_\w{82})\b"),
    "GitLab token": _form("glpat- gldt- glrt- glsoat- glptt-", r"\b(gl(?:pat|dt|rt|soat|ptt)-[\w-]{20,50})"),
    "Google key": _form("AIza GOCSPX-", r"\b(AIza[\w-]{35}|GOCSPX-[\w-]{28})(?![\w-])"),
    "Slack token": _form("xox hooks.slack.com", r"\b(xox[abeoprs]-(?:\d+-)*[A-Za-z0-9-]{10,}"
                         r"|hooks\.slack\.com/services/T\w{8,}/B\w{8,}/\w{24})"),
    "Stripe key": _form("sk_ rk_", r"\b([sr]k_(?:live|test)_[A-Za-z0-9]{20,})"),
    "OpenAI key": _form("T3BlbkFJ", r"\b(sk-[\w-]{20,100}T3BlbkFJ[\w-]{20,100})"),
    "Anthropic key": _form("sk-ant-", r"\b(sk-ant-[a-z]+\d\d-[\w-]{80,})"),
    "Hugging Face token": _form("hf_", r"\b(hf_[A-Za-z]{34})\b"),
    "PyPI token": _form("pypi-AgEI", r"\b(pypi-AgEI[\w-]{50,})"),
    "npm token": _form("npm_", r"\b(npm_[A-Za-z0-9]{36})\b"),
    "SendGrid key": _form("SG.", r"\b(SG\.[\w-]{22}\.[\w-]{43})"),
    "Telegram token": _form(":AA", r"\b(\d{8,10}:AA[\w-]{33})(?![\w-])"),
    "Azure storage key": _form("AccountKey=", r"AccountKey=([A-Za-z0-9+/]{86}==)"),
    "DigitalOcean token": _form("dop_v1_ doo_v1_", r"\b(do[op]_v1_[a-f0-9]{64})\b"),
    "Shopify token": _form("shp", r"\b(shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32})\b"),
    "JSON web token": _form("eyJ", r"\b(eyJ[\w-]{10,999}\.eyJ[\w-]{10,2999}\.[\w-]{20,999})"),
    "password in an address": _form("://", r"\b[a-z][a-z0-9+.-]{1,15}://[^\s:@/\"'`<>{}$%()]{1,64}:"
                                    r"([^\s:@/\"'`<>{}$%()]{8,64})@[\w-]", 3.2),
    # What is given to a name that says so: random to look at, digits and letters in it.
    "assigned secret": _form("key Key KEY secret Secret SECRET token Token TOKEN passw Passw PASSW",
                             r"(?i:api_?key|access_?key|secret|token|passw(?:or)?d|private_?key)[\w-]{0,20}[\"']?\s{0,4}"
                             r"(?::=|=>|=|:)\s{0,4}[\"'`](?=[^\"'`]{0,120}\d)(?=[^\"'`]{0,120}[A-Za-z])([A-Za-z0-9+/=_-]{24,120})[\"'`]",
                             3.7),
}  # fmt: skip
"""By kind. Anchors are matched as they are written."""

_EXAMPLE = re.compile(
    r"(?i)example|sample|dummy|fake|mock|placeholder|change.?me|your|redacted|secret|passw|foobar|deadbeef"
    r"|x{5}|\.{3}|(.)\1{5}|12345|abcdef|qwerty|insert|test"
)
"""How people mark what is no secret."""


def secret_in(text: str) -> str | None:
    """The kind of the first secret that stands in a text."""
    for kind, form in FORMS.items():
        if any(anchor in text for anchor in form.anchors):
            for found in form.pattern.finditer(text):
                if entropy(found[1]) >= form.entropy and (kind == "private key" or not _EXAMPLE.search(found[1])):
                    return kind
    return None


def entropy(text: str) -> float:
    """Bits a character, -Σ p log2 p over the characters of a text: 4.7 for many random letters, about 3.5 for words."""
    n = len(text)
    return -sum(count / n * math.log2(count / n) for count in Counter(text).values())
