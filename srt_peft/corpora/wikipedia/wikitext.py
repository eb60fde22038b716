"""Wikitext becomes plain text: what a reader sees as prose, and nothing of how it was marked up.

mwparserfromhell parses, and here it is decided what each node says. References, comments, formulas, galleries, tables,
media and most templates say nothing; a link says its label; a template that holds words of the sentence around it
(`{{convert|5|km}}`, `{{lang|de|Reich}}`) says those. Sections that hold no prose (References, External links) are left
out whole, and so is a heading with nothing below it.

What MediaWiki takes out before it parses is taken out before parsing here, too: comments, and what stands between
`<ref>` and `</ref>`. It is a third of the bytes, and most of what is marked up wrongly.

A line in which markup is left all the same, since it was broken, is left out and counted.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from srt_peft.corpora.documents import library

ENGLISH = {"file": ("file", "image", "media"), "category": ("category",)}
"""The names of namespaces that are known to every wiki, beside those in its own language."""


class Names(NamedTuple):
    """What a wiki calls the namespaces whose links are no prose, in lower case."""

    file: tuple[str, ...] = ENGLISH["file"]
    category: tuple[str, ...] = ENGLISH["category"]


class Plain(NamedTuple):
    """A page's prose, and the lines that were left out of it since their markup is broken."""

    text: str
    broken: int


def plain(source: str, names: Names = Names()) -> Plain:  # noqa: B008 - it is immutable
    """The prose of a page."""
    parse = parser()
    raw = parse(_prepared(source), skip_style_tags=True)
    said: list[str] = []
    _say(raw.nodes, names, said)
    return _tidied("".join(said))


def categories(source: str, names: Names = Names()) -> list[str]:  # noqa: B008
    """The categories that a page says that it is in."""
    prefix = "|".join(map(re.escape, names.category))
    return [found.strip() for found in re.findall(rf"(?i)\[\[\s*(?:{prefix})\s*:\s*([^|\]\n]+)", source)]


def parser() -> Callable[..., Any]:
    """The library that parses, or a refusal in words."""
    parse: Callable[..., Any] = library("mwparserfromhell").parse
    return parse


# --- before parsing -----------------------------------------------------------------------------------------

_SILENT = "ref|math|chem|ce|gallery|timeline|score|imagemap|syntaxhighlight|source|hiero|mapframe|templatestyles|graph"
_OUT = re.compile(
    rf"<!--.*?(?:-->|\Z)|<(?P<tag>{_SILENT})\b[^<>]*?(?:/\s*>|>.*?</(?P=tag)\s*>)|</?references\b[^<>]*>"
    r"|__[A-Z]{3,}__|[\x00-\x08]",
    re.DOTALL | re.IGNORECASE,
)
_LINK = re.compile(r"\[\[([^\[\]{}|<>:#=\n]+)(?:\|([^\[\]{}|<>=\n]*))?\]\]")
"""Most links are no more than a title, or a title and a label: what these say needs no parser."""
_HEADING = re.compile(r"^(={1,6})\s*(.*?)\s*\1\s*$", re.MULTILINE)
_NO_PROSE = re.compile(
    r"(?i)(see also|references?|notes?|footnotes?|citations?|sources?|works cited|external links?|further reading"
    r"|bibliography|notes and references|references and notes|gallery|literature|filmography|discography)"
)


def _label(link: re.Match[str]) -> str:
    return link[2] or link[1].replace("_", " ")


def _prepared(source: str) -> str:
    """The page without what MediaWiki takes out before it parses, and without the sections that hold no prose."""
    source = _LINK.sub(_label, _OUT.sub("", source))
    kept, start, skipping = [], 0, 0
    for heading in _HEADING.finditer(source):
        level = len(heading[1])
        if skipping and level > skipping:
            continue
        if not skipping:
            kept.append(source[start : heading.start()])
        start = heading.start()
        skipping = level if _NO_PROSE.fullmatch(heading[2].strip("' ")) else 0
    # Categories stand after the last section: they are read from the source, and are no loss here.
    return "".join(kept) if skipping else "".join([*kept, source[start:]])


# --- what each node says ------------------------------------------------------------------------------------


def _say(nodes: Iterable[Any], names: Names, said: list[str]) -> None:
    for node in nodes:
        _NODES[type(node).__name__](node, names, said)


def _inner(code: Any, names: Names) -> str:
    if code is None:
        return ""
    said: list[str] = []
    _say(code.nodes, names, said)
    return "".join(said)


def _text(node: Any, _names: Names, said: list[str]) -> None:
    said.append(node.value)


def _entity(node: Any, _names: Names, said: list[str]) -> None:
    said.append(html.unescape(str(node)))


def _heading(node: Any, names: Names, said: list[str]) -> None:
    said.append(f"\n{_MARK}{_inner(node.title, names).strip()}\n")


_MARK = "\x01"
"""Before a heading, until it is known whether anything stands below it."""
_ITEM = "\x02"
"""Before an item of a list."""
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*|simple")


def _wikilink(node: Any, names: Names, said: list[str]) -> None:
    title = str(node.title).strip()
    prefix, colon, rest = title.partition(":")
    space = prefix.strip().lower().replace("_", " ")
    if colon and prefix and (space in names.file or space in names.category):
        return
    if colon and _LANGUAGE.fullmatch(prefix) and node.text is None and rest:
        return  # the page in another language
    said.append(title.lstrip(":").replace("_", " ") if node.text is None else _inner(node.text, names))


def _external(node: Any, names: Names, said: list[str]) -> None:
    said.append(_inner(node.title, names) if node.brackets else str(node.url))


_BLOCKS = {"p", "div", "blockquote", "li", "dd", "dt", "center", "poem"}
_GONE = {"table", "ref", "references", "gallery", "math", "timeline", "score", "hr"}


def _tag(node: Any, names: Names, said: list[str]) -> None:
    tag = str(node.tag).strip().lower()
    if tag in _GONE:
        return
    if tag == "br":
        said.append("\n")
    elif tag == "nowiki":
        said.append(html.unescape(str(node.contents or "")))
    elif node.wiki_markup in ("*", "#"):
        said.append(_ITEM)  # its text follows, as a sibling
    elif node.wiki_markup in (":", ";"):
        pass
    elif tag in _BLOCKS:
        said.append(f"\n{_inner(node.contents, names)}\n")
    else:
        said.append(_inner(node.contents, names))


def _template(node: Any, names: Names, said: list[str]) -> None:
    name = str(node.name).strip().lower().replace("_", " ")
    render = TEMPLATES.get(name)
    if render is not None:
        said.append(render([_inner(p.value, names).strip() for p in node.params if not p.showkey]))


def _nothing(_node: Any, _names: Names, _said: list[str]) -> None:
    """Comments and arguments."""


_NODES: dict[str, Callable[[Any, Names, list[str]], None]] = {
    "Text": _text,
    "HTMLEntity": _entity,
    "Heading": _heading,
    "Wikilink": _wikilink,
    "ExternalLink": _external,
    "Tag": _tag,
    "Template": _template,
    "Comment": _nothing,
    "Argument": _nothing,
}


# --- templates that hold words of a sentence ----------------------------------------------------------------


def _nth(index: int) -> Callable[[Sequence[str]], str]:
    return lambda values: values[index] if -len(values) <= index < len(values) else ""


_RANGE = {"to", "-", "–", "and", "or", "by", "x", "×", "to(-)", "and(-)", "+/-", "±"}


def _convert(values: Sequence[str]) -> str:
    """`{{convert|5|km|mi}}` is 5 km, `{{convert|5|to|6|km}}` is 5 to 6 km."""
    if len(values) > 3 and values[1] in _RANGE:
        return f"{values[0]} {values[1].removesuffix('(-)')} {values[2]} {values[3]}"
    return " ".join(values[:2])


def _fraction(values: Sequence[str]) -> str:
    """`{{frac|1|2}}` is 1/2, `{{frac|3|1|2}}` is 3 1/2, and `{{frac|2}}` is 1/2 as well."""
    *whole, over, under = ["1", *values] if len(values) == 1 else values or ["", ""]
    return " ".join([*whole, f"{over}/{under}"])


def _lone(text: str) -> Callable[[Sequence[str]], str]:
    return lambda _values: text


def _after(text: str) -> Callable[[Sequence[str]], str]:
    return lambda values: f"{text}{' '.join(values[:1])}"


def _as_of(values: Sequence[str]) -> str:
    return f"As of {'-'.join(values[:3])}"


_SAY: dict[Callable[[Sequence[str]], str], str] = {
    _nth(0): "nowrap|nobr|no wrap|small|big|smaller|larger|sc|smallcaps|abbr|angbr|quote|blockquote|cquote|flag|em|val"
    "|flagcountry|flagu|ill|interlanguage link|not a typo|formatnum|nihongo",
    _nth(1): "lang|langx|transl|transliteration|tooltip",
    _convert: "convert|cvt",
    _fraction: "frac|fraction|sfrac",
    _as_of: "as of",
    _after("c. "): "circa|c.|ca.",
    _after("US$"): "us$|usd",
    _after("£"): "£|gbp",
    _after("€"): "€|eur",
    _lone(" – "): "ndash|en dash|spaced ndash|snd|spnd|–",
    _lone(" — "): "mdash|em dash|spaced mdash|—",
    _lone(" "): "nbsp|space|thin space|thinsp",
    _lone("'"): "'",
    _lone("'s"): "'s",
    _lone("="): "=",
}
TEMPLATES = {name: say for say, names in _SAY.items() for name in names.split("|")}
"""The templates that say something, by what they make of their unnamed values."""

# --- after parsing ------------------------------------------------------------------------------------------

RESIDUE = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|\|\s*(?:thumb|thumbnail|frame|frameless|left|right|center|upright|\d+px)\b"
    r"|</?\s*(?:ref|references|br|div|span|table|tr|td|small|sup|sub|nowiki|gallery|math|blockquote|center|includeonly"
    r"|noinclude|onlyinclude|poem|code|big|font|u|i|b|s|p)\b[^<>]*>"
    r"|^\s*-?\s*[|!]|\b(?:col|row)span\s*=|\b(?:style|align|class)\s*=\s*\"|'''|''|<!--|-->|__[A-Z]{3,}__|&(?:nbsp|lt|gt|amp|quot);",
    re.MULTILINE | re.IGNORECASE,
)
"""What is never found in a text of ours."""

_MARKUP = re.compile(r"'{2,5}|</?[a-zA-Z][^<>\n]{0,200}>|\x7f")
_EMPTY = re.compile(r" ?[(\[](?:\s|[,;:/–-]|&nbsp;)*[)\]]")
_LEADING = re.compile(r"([(\[])\s*[,;:]\s*")
_SPACES = re.compile(r"[ \t\u00a0\u2002-\u200b\u202f]+")
_POINT = re.compile(r" +([,.;:!?)](?:\s|$))")


def _tidied(said: str) -> Plain:
    """Lines, each of one paragraph, item or heading; an empty one between any two that are not items of one list."""
    lines: list[str] = []
    broken = 0
    headings: list[str] = []
    for raw in _MARKUP.sub("", said).split("\n"):
        line = _SPACES.sub(" ", raw.strip().lstrip(f"*#:; {_ITEM}"))
        if raw.startswith(_MARK):
            headings = [line.strip(f"{_MARK} ")]  # one with nothing below it is forgotten here
            continue
        line = _POINT.sub(r"\1", _LEADING.sub(r"\1", _EMPTY.sub("", line))).strip()
        if not any(map(str.isalnum, line)):
            continue
        if RESIDUE.search(line):
            broken += 1
            continue
        lines += [f"\n{heading}\n" for heading in headings if heading and not RESIDUE.search(heading)]
        lines.append(f"- {line}" if _ITEM in raw else f"\n{line}\n")
        headings = []
    return Plain(re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip(), broken)
