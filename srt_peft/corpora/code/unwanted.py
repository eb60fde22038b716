"""What is left out of a corpus of code, and why: others' code, code that no person wrote, and what is no text.

Each reason is told by a table. The names follow linguist's lists (github-linguist, vendor.yml and generated.rb), by
which GitHub itself folds such files away; there is no port of it to Python that is kept. What is too regular to be
written by hand follows the paper on Codex (Chen et al. 2021, section 3.1), as most corpora of code since then.
"""

from __future__ import annotations

import re

from srt_peft.corpora.code import headers

MOST_BYTES = 1 << 20
"""Larger files are data, mostly; The Stack has none either."""

_FOLDERS = (
    "node_modules bower_components jspm_packages web_modules vendor vendors _vendor _vendored vendored third_party "
    "third-party thirdparty 3rdparty 3rd_party external externals extern Godeps Pods Carthage "
    "site-packages dist-packages .venv venv virtualenv .yarn .pnpm .gradle .eggs dist"
)
_VENDORED = re.compile(
    rf"""(?:^|/)(?:{"|".join(map(re.escape, _FOLDERS.split()))})/
    |^(?:deps|dependencies)/
    |(?:^|/)(?:jquery|bootstrap|angular|react(?:-dom)?|vue|d3|lodash|underscore|backbone|prototype|require|modernizr
       |moment|three|handlebars|mustache|highlight|codemirror|tinymce|ckeditor)(?:[-.][\w.-]*)?\.m?js$
    |(?:^|/)(?:sqlite3(?:ext)?\.[ch]|stb_\w+\.h|catch(?:2|_amalgamated)?\.[hc]pp|doctest\.h|miniz\.[ch]|uthash\.h
       |nlohmann/json\.hpp|httplib\.h|pugixml\.[hc]pp|tinyxml2?\.(?:h|cpp)|ez_setup\.py|versioneer\.py|get-pip\.py)$""",
    re.VERBOSE | re.IGNORECASE,
)
_GENERATED = re.compile(
    r"""_pb2(?:_grpc)?\.pyi?$|\.pb(?:\.\w+)?\.(?:go|cc|h|swift|rb)$|\.pb\.[ch]$|_pb\.(?:js|ts|d\.ts)$
    |\.(?:designer|g|g\.i|generated)\.\w+$|(?:^|/)zz_generated[\w.]*\.go$|[._](?:generated|gen)\.(?:go|rs|tsx?|jsx?|h|cs)$
    |(?:^|/)(?:__generated__|generated|\.openapi-generator|swagger-gen)/
    |\.tab\.(?:c|h|cc|hh|cpp|hpp)$|(?:^|/)lex\.yy\.c$|(?:^|/)(?:moc|qrc|ui)_\w+\.(?:cpp|h)$|_wrap\.(?:c|cxx)$
    |(?:^|/)(?:R|BuildConfig)\.java$|(?:^|/)(?:AssemblyInfo|TemporaryGeneratedFile_\w+)\.cs$""",
    re.VERBOSE | re.IGNORECASE,
)
_MINIFIED = re.compile(r"[.-](?:min|bundle|chunk|packed)\.[mc]?js$", re.IGNORECASE)
_MARK = re.compile(
    r"""@generated\b | <auto-?generated | \bcode[ ]generated[ ](?:by|from)\b | made[ ]by[ ]GNU[ ]Bison
    | \b(?:file|code|class|module|header|source|parser)\b[^\n]{0,40}
      \b(?:is|was|been)[ ](?:auto-?|automatically[ ]|machine[ -])?generated
    | ^[^\w\n]*(?:auto-?|automatically[ ]|machine[ -])?generated[ ](?:by|from|with|using|file|code)\b
    | \bdo[ ]not[ ](?:edit|modify)(?:[ ](?:this[ ]file|by[ ]hand|manually|directly|it)|[ \t]*(?:!|\.|-|\*|$))""",
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
_LFS = b"version https://git-lfs.github.com/spec/"


def by_path(path: str) -> str | None:
    """Why a file is left out, as its name says."""
    for reason, pattern in (("vendored", _VENDORED), ("generated", _GENERATED), ("minified", _MINIFIED)):
        if pattern.search(path):
            return reason
    return None


def by_bytes(raw: bytes) -> str | None:
    """Why a file's bytes are left out: they are no text."""
    if raw.startswith(_LFS):
        return "LFS pointer"
    if b"\0" in raw:
        return "binary"
    try:
        raw.decode()
    except UnicodeDecodeError:
        return "not UTF-8"
    return None


def by_text(text: str) -> str | None:
    """Why a text is left out: nobody wrote it by hand."""
    if any(_MARK.search(comment) for comment, _ in headers.comments(text)):  # before any code, as Go's own rule has it
        return "generated"
    lines = text.splitlines() or [""]
    long = max(map(len, lines)) > 1000 or len(text) > 100 * len(lines)
    return "minified" if long or sum(map(str.isalnum, text)) < 0.25 * len("".join(text.split())) else None
