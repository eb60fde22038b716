"""The languages of the paper, and which of them a file is in: by its name, and by its text where a name is not enough.

The paper says thirteen and lists fourteen; all fourteen are taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

LANGUAGES = {
    "Python": ".py .pyi .pyw",
    "JavaScript": ".js .mjs .cjs .jsx",
    "TypeScript": ".ts .mts .cts .tsx",
    "Java": ".java",
    "C": ".c",
    "C++": ".cc .cpp .cxx .c++ .hh .hpp .hxx .h++ .ipp .tpp",
    "Go": ".go",
    "Rust": ".rs",
    "C#": ".cs .csx",
    "Ruby": ".rb .rake .gemspec",
    "PHP": ".php",
    "Swift": ".swift",
    "Kotlin": ".kt .kts",
    "Scala": ".scala .sbt",
}
HEADER = "C or C++"
"""What a `.h` is until its text has been read."""
SCRIPT = "a script"
"""What a program without an extension is until its first line has been read."""

_BY_SUFFIX = {suffix: language for language, suffixes in LANGUAGES.items() for suffix in suffixes.split()}
_BY_NAME = {"Rakefile": "Ruby", "Gemfile": "Ruby"}
_INTERPRETERS = {"python": "Python", "pypy": "Python", "node": "JavaScript", "ruby": "Ruby", "php": "PHP"}
_SHEBANG = re.compile(r"#!\s*\S*?(?:/env\s+(?:-\S+\s+)*(?:\S*/)?)?([a-z]+)[\d.]*(?:\s|$)")

# A name that other kinds of files have as well, and what such a file begins with or lacks.
_NOT = {
    ".ts": re.compile(r"\A\s*<(?:\?xml|!DOCTYPE TS|TS\b)"),  # Qt's translations
    ".rs": re.compile(r"\A\s*(?:<\?xml|#pragma\s+version)"),  # RenderScript, and what ReSharper saves
    ".php": re.compile(r"\A(?!.*<\?)", re.DOTALL),
    ".h": re.compile(
        r"^[ \t]*(?:@(?:interface|protocol|class|property|import)\b|#import\b)", re.MULTILINE
    ),  # Objective-C
}
_COMMENTS = re.compile(r"/\*.*?(?:\*/|\Z)|//[^\n]*", re.DOTALL)
_CPP = re.compile(
    r"""^[ \t]*(?:(?:inline\s+)?namespace\b|template\s*<|using\s+[\w:]+|class\s+\w|(?:public|private|protected)\s*:)
    |\bstd::|\b(?:constexpr|nullptr|static_cast|dynamic_cast|reinterpret_cast|noexcept|typename|virtual)\b
    |^[ \t]*\#[ \t]*include[ \t]*<[a-z_]+>""",  # <vector>: C's own headers end in .h
    re.MULTILINE | re.VERBOSE,
)
# What a header for both shows to C++ alone; its text is C all the same.
_FOR_CPP_ONLY = re.compile(
    r"^[ \t]*#[ \t]*if(?:def|[ \t]+defined)?[ \t(]*__cplusplus.*?(?:^[ \t]*#[ \t]*(?:else|endif)|\Z)",
    re.DOTALL | re.MULTILINE,
)


def by_name(path: str, *, executable: bool = False) -> str | None:
    """The language that a path promises, HEADER, SCRIPT, or None: another one, or none."""
    name = PurePosixPath(path)
    suffix = name.suffix.lower()
    if suffix == ".h":
        return HEADER
    if executable and not suffix:
        return SCRIPT
    return _BY_NAME.get(name.name) or _BY_SUFFIX.get(suffix)


def by_text(promised: str, path: str, text: str, beside: str) -> str | None:
    """The language that a file is in; None where the text is of another one than its name promises.

    `beside` is what a header is that says nothing of itself: C or C++, as its repository has it.
    """
    bare = _COMMENTS.sub(" ", text) if promised == HEADER else text  # Doxygen's @class is no Objective-C
    foreign = _NOT.get(PurePosixPath(path).suffix.lower())
    if foreign and foreign.search(bare):
        return None
    if promised == SCRIPT:
        shebang = _SHEBANG.match(text)
        return _INTERPRETERS.get(shebang[1]) if shebang else None
    if promised == HEADER:
        return "C++" if _CPP.search(_FOR_CPP_ONLY.sub("", bare)) else beside
    return promised


def beside(promised: Iterable[str | None]) -> str:
    """What a header of this repository is taken for, where it could be either: that of which there are more files."""
    named = list(promised)
    return "C++" if named.count("C++") > named.count("C") else "C"
