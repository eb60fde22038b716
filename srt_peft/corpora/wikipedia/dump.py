"""MediaWiki's XML as pages, in parts that any process may read on its own.

A file is cut where a reader can begin: a plain one anywhere, one of bz2 at each of its streams (`pages-articles-
multistream` has one for every hundred pages), one of gz or of a single stream only at its start. A page belongs to the
part in which its `<page` begins; a reader skips to the first of these, and reads on past its part's end until the last
is whole. So it does not matter where the cuts are, and pages may cross streams.

`survey` passes once over the compressed bytes: it hashes them and finds where the streams begin. It also looks at the
end, so that a file that was cut off in transit is told of in seconds, and not after a night.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import re
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from srt_peft.corpora.documents import PLACE, MendableError
from srt_peft.corpora.wikipedia.wikitext import ENGLISH, Names
from srt_peft.errors import OptionError

CHUNK = 1 << 20
PART = 16 << 20
"""Of compressed bytes, at least, but for a file's last part."""
LONGEST = 64 << 20
"""Of a page: MediaWiki allows 2 MiB."""

_STREAM = re.compile(rb"BZh[1-9](?:1AY&SY|\x17\x72\x45\x38\x50\x90)")
EXPECTED = "expected a MediaWiki dump, such as enwiki-20240101-pages-articles-multistream.xml.bz2"
Advance = Callable[[int], Any]


class Survey(NamedTuple):
    """A file's size, its hash, and where a reader may begin."""

    size: int
    sha256: str
    starts: tuple[int, ...]


class Part(NamedTuple):
    """The pages that begin between two places of a file."""

    path: Path
    start: int
    end: int


class Site(NamedTuple):
    """The wiki that a dump is of."""

    host: str | None
    names: Names
    wanted: frozenset[str]
    """The namespaces by number."""


class Page(NamedTuple):
    """A page as its newest revision has it."""

    id: str
    title: str
    redirect: str | None
    timestamp: str
    text: str
    plain: bool = False
    """Whether the text is prose already."""


def refused(path: Path, what: str, remedy: str = EXPECTED) -> OptionError:
    """A dump that cannot be read."""
    return MendableError(PLACE, [f"{path} {what}: {remedy}"])


def survey(path: Path, advance: Advance) -> Survey:
    """One pass over a file's compressed bytes."""
    digest, starts, at, tail = hashlib.sha256(), [0], 0, b""
    streams = path.suffix == ".bz2"
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            if streams:
                window = tail + chunk
                starts += [at - len(tail) + found.start() for found in _STREAM.finditer(window)]
                tail = window[-9:]
            at += len(chunk)
            advance(len(chunk))
    if not at:
        raise refused(path, "is empty")
    _check_whole(path, at)
    if path.suffix == ".xml":
        starts = list(range(0, at, PART))
    return Survey(at, digest.hexdigest(), tuple(sorted(set(starts))))


def _check_whole(path: Path, size: int) -> None:
    """Refuse a file whose end is not the end of a dump, as far as can be seen from there."""
    with path.open("rb") as file:
        file.seek(max(0, size - 64))
        tail = file.read()
    whole = True
    if path.suffix == ".bz2":
        # A stream ends in a mark of 48 bits, 32 of a checksum, and up to 7 that fill its last byte.
        bits = int.from_bytes(tail[-12:], "big")
        whole = any((bits >> 32 + fill) & (1 << 48) - 1 == 0x177245385090 for fill in range(8))
    elif path.suffix == ".xml":
        whole = tail.rstrip().endswith(b"</mediawiki>")
    if not whole:
        raise refused(path, "is cut off: its end is not that of a dump", "bring it again, and compare its checksum")


def parts_of(path: Path, found: Survey) -> list[Part]:
    """The file in parts that are worth a process."""
    cuts = [0]
    for start in found.starts:
        if start - cuts[-1] >= PART:
            cuts.append(start)
    return [Part(path, start, end) for start, end in zip(cuts, [*cuts[1:], found.size], strict=True)]


def site_of(path: Path, wanted: frozenset[str]) -> Site:
    """The wiki that a dump says it is of, and what its namespaces are called there."""
    head = b""
    for chunk, _ in _decompressed(Part(path, 0, 1)):
        head += chunk
        if b"</siteinfo>" in head or b"<page>" in head or len(head) > 1 << 20:
            break
    if not head.lstrip(b"\xef\xbb\xbf \r\n\t").startswith((b"<mediawiki", b"<?xml")) or b"<mediawiki" not in head:
        raise refused(path, "is no MediaWiki XML")
    found = re.search(rb"<siteinfo>.*?</siteinfo>", head, re.DOTALL)
    if found is None:
        return Site(None, Names(), wanted)
    try:
        info = ET.fromstring(found[0])  # noqa: S314 - a fragment without a DOCTYPE has no entities to expand
    except ET.ParseError as error:
        raise refused(path, f"is no whole XML ({error})") from None
    base = info.findtext("base") or ""
    spoken = {space.get("key"): (space.text or "").lower() for space in info.iter("namespace")}
    own = {kind: (*ENGLISH[kind], *(spoken[key] for key in keys if spoken.get(key))) for kind, keys in _KEYS.items()}
    host = re.match(r"https?://([^/]+)", base)
    names = Names(*(tuple(dict.fromkeys(own[kind])) for kind in ("file", "category")))
    return Site(host[1].lower() if host else info.findtext("dbname"), names, wanted)


_KEYS = {"file": ("6", "-2"), "category": ("14",)}


# --- bytes --------------------------------------------------------------------------------------------------


def _decompressed(part: Part, advance: Advance = lambda _: None) -> Iterator[tuple[bytes, bool]]:
    """A file's bytes from a part's start to the file's end; and whether they began after the part's end."""
    yield from _READERS.get(part.path.suffix, _plain_bytes)(part, advance)


def _plain_bytes(part: Part, advance: Advance) -> Iterator[tuple[bytes, bool]]:
    with part.path.open("rb") as file:
        file.seek(part.start)
        at = part.start
        while chunk := file.read(min(CHUNK, part.end - at) if at < part.end else CHUNK):
            yield chunk, at >= part.end
            at += len(chunk)
            advance(len(chunk) if at <= part.end else 0)


def _gz_bytes(part: Part, advance: Advance) -> Iterator[tuple[bytes, bool]]:
    with part.path.open("rb") as raw, gzip.GzipFile(fileobj=raw) as file:
        at = 0
        try:
            while chunk := file.read(CHUNK):
                yield chunk, False
                advance(raw.tell() - at)
                at = raw.tell()
        except (EOFError, OSError, zlib.error) as error:
            raise _damaged(part.path, error) from None


def _bz2_bytes(part: Part, advance: Advance) -> Iterator[tuple[bytes, bool]]:
    with part.path.open("rb") as file:
        file.seek(part.start)
        start = at = part.start  # where the stream begins, and what has been read
        engine, left = bz2.BZ2Decompressor(), b""
        try:
            while True:
                if engine.eof:
                    left = engine.unused_data
                    start, engine = at - len(left), bz2.BZ2Decompressor()
                if engine.needs_input and not left:
                    left = file.read(1 << 17)
                    at += len(left)
                    advance(len(left) if at <= part.end else 0)
                    if not left:
                        break
                chunk, left = engine.decompress(left, CHUNK), b""
                if chunk:
                    yield chunk, start >= part.end
        except (OSError, EOFError) as error:
            raise _damaged(part.path, error) from None
        if start < at and not engine.eof:
            raise refused(part.path, "is cut off within a bz2 stream", "bring it again, and compare its checksum")


def _damaged(path: Path, error: Exception) -> Exception:
    """What a decompressor's complaint is; what the disk has to say, which has a number, goes its own way."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    return refused(path, f"cannot be decompressed ({error})", "bring it again, whole")


_READERS: dict[str, Callable[[Part, Advance], Iterator[tuple[bytes, bool]]]] = {
    ".bz2": _bz2_bytes,
    ".gz": _gz_bytes,
}

# --- pages --------------------------------------------------------------------------------------------------

_OPEN, _CLOSE = b"<page>", b"</page>"


def pages_of(part: Part, site: Site, left_out: dict[str, int], advance: Advance = lambda _: None) -> Iterator[Page]:
    """The pages that begin in a part, of the namespaces that are wanted; the others are counted."""
    for raw in _elements(part, advance):
        page = _page(raw, part.path, site, left_out)
        if page is not None:
            yield page


def _elements(part: Part, advance: Advance) -> Iterator[bytes]:
    """The bytes from each `<page>` that begins in the part to its `</page>`."""
    buffer, base, limit = bytearray(), 0, None
    ended, begun = False, part.start == 0  # a part without a page may begin within the end
    for chunk, beyond in _decompressed(part, advance):
        if beyond and limit is None:
            limit = base + len(buffer)
        buffer += chunk
        at = 0
        while (opened := buffer.find(_OPEN, at)) >= 0:
            if limit is not None and base + opened >= limit:
                return
            closed = buffer.find(_CLOSE, opened)
            if closed < 0:
                break
            at = closed + len(_CLOSE)
            begun = True
            yield bytes(buffer[opened:at])
        ended = ended or buffer.find(b"</mediawiki>", at) >= 0
        # What may yet be, or become, a page: from its `<page>` on, or the few bytes that one may have begun in.
        keep = opened if opened >= 0 else max(at, len(buffer) - len(_CLOSE + b"mediawiki"))
        del buffer[:keep]
        base += keep
        if limit is not None and opened < 0 and base + len(buffer) - len(_OPEN) >= limit:
            return
        if len(buffer) > LONGEST:
            raise refused(part.path, f"has a page of more than {LONGEST >> 20} MiB")
    if buffer.find(_OPEN) >= 0 or (begun and not ended):
        raise refused(part.path, "is cut off: it has no </mediawiki>", "bring it again, and compare its checksum")


def _page(raw: bytes, path: Path, site: Site, left_out: dict[str, int]) -> Page | None:
    try:
        page = ET.fromstring(raw)  # noqa: S314 - a fragment without a DOCTYPE has no entities to expand
    except ET.ParseError as error:
        opening = raw[:80].decode(errors="replace")
        raise refused(path, f"has a page that is no XML ({error}; it begins {opening!r})") from None
    space = page.findtext("ns") or "0"
    revision = page.findall("revision")[-1:]  # a page's history ends in its newest
    reason = (
        f"of namespace {space}"
        if space not in site.wanted
        else "without a revision"
        if not revision
        else f"of the model {revision[0].findtext('model')}"
        if (revision[0].findtext("model") or "wikitext") != "wikitext"
        else None
    )
    if reason is not None:
        left_out[f"pages {reason}"] = left_out.get(f"pages {reason}", 0) + 1
        return None
    text = revision[0].findtext("text") or ""
    return Page(
        page.findtext("id") or "",
        page.findtext("title") or "",
        _target(page, text),
        revision[0].findtext("timestamp") or "",
        text,
    )


_REDIRECT = re.compile(r"\s*#([^\W\d]+)\s*:?\s*\[\[\s*:?([^\]|\n]+)")


def _target(page: ET.Element, text: str) -> str | None:
    """Where a redirect leads; dumps before 2012 say so only in the text."""
    element, said = page.find("redirect"), _REDIRECT.match(text)
    if element is None and (said is None or said[1].lower() != "redirect"):
        return None
    title = element.get("title") if element is not None else None
    return (title or (said[2] if said else "")).partition("#")[0].strip()
