"""Small wikis, as MediaWiki dumps them; and what a corpus of them is, slowly and by the definition."""

import bz2
import gzip
import json
import random
import xml.etree.ElementTree as ET
from functools import partial
from xml.sax.saxutils import escape, quoteattr

from srt_peft.corpora.documents import Document
from srt_peft.corpora.rows import is_held_out, rows_of_pair
from srt_peft.corpora.wikipedia.wikitext import plain
from tests.corpora.worlds import edited, prose

DATES = ("2023-11-01T00:00:00Z", "2024-01-01T00:00:00Z")
TOPICAL = (
    "Elections in Utopia",
    "Algorithms",
    "Chemistry",
    "Football clubs",
    "Case law",
    "Banks",
    "Earthquakes",
    "Sheep",
)


def element(key, title, text, redirect=None, space=0, date=DATES[0]):
    lead = "" if redirect is None else f"<redirect title={quoteattr(redirect)} />"
    return (
        f"  <page>\n    <title>{escape(title)}</title>\n    <ns>{space}</ns>\n    <id>{key}</id>\n    {lead}\n"
        f"    <revision><id>1{key}</id><timestamp>{date}</timestamp><model>wikitext</model>"
        f'<text xml:space="preserve">{escape(text)}</text></revision>\n  </page>\n'
    )


def header(host="en.wikipedia.org", category="Category"):
    return (
        '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">\n  <siteinfo>\n'
        f"    <dbname>wiki</dbname>\n    <base>https://{host}/wiki/Main_Page</base>\n    <namespaces>\n"
        f'      <namespace key="0" case="first-letter" />\n      <namespace key="14">{category}</namespace>\n'
        "    </namespaces>\n  </siteinfo>\n"
    ).replace(' xmlns="http://www.mediawiki.org/xml/export-0.11/"', "")


def xml(pages, **site):
    return (header(**site) + "".join(pages) + "</mediawiki>\n").encode()


def multistream(pages, each=3, **site):
    """As Wikipedia does it: the header, so many pages at a time, and the end, each a stream of bz2."""
    blocks = [header(**site), *("".join(pages[i : i + each]) for i in range(0, len(pages), each)), "</mediawiki>\n"]
    return b"".join(bz2.compress(block.encode()) for block in blocks)


def written(folder, name, pages, how=".xml", **site):
    path = folder / f"{name}{how}"
    packed = {
        ".xml": partial(xml, pages, **site),
        ".xml.gz": lambda: gzip.compress(xml(pages, **site)),
        ".one.xml.bz2": lambda: bz2.compress(xml(pages, **site)),
        ".xml.bz2": partial(multistream, pages, **site),
    }
    path.write_bytes(packed[how]())
    return path


def article(seed, topic, sentences=14):
    """Prose with markup all over it."""
    said = (
        prose(seed, sentences)
        .replace(" bridge", " [[Bridge (thing)|bridge]]")
        .replace(" stone", "<ref>B. {{x}}</ref> stone")
    )
    table = '{| class="wikitable"\n|-\n| a || b\n|}\n'
    return (
        f"{{{{Infobox|a=[[b]]}}}}\n'''Page''' {said}\n{table}\n== References ==\n{{{{reflist}}}}\n[[Category:{topic}]]"
    )


def world(count, seed=0):
    """Two dates of one wiki: pages that stand, are edited, moved, gone, created, written again and copied."""
    rng = random.Random(seed)
    sides = [], []
    for key in range(1, count + 1):
        title, topic = f"Page {key}", rng.choice(TOPICAL)
        text = article(rng.random(), topic)
        later = edited(text, rng.random()) if rng.random() < 0.5 else text
        fate = rng.randrange(20)
        if fate != 1:  # else created
            sides[0].append(element(key, title, text))
        if fate == 2:  # moved
            sides[1].append(element(key, f"Moved {key}", later, date=DATES[1]))
            sides[1].append(element(10_000 + key, title, f"#REDIRECT [[Moved {key}]]", f"Moved {key}", date=DATES[1]))
        elif fate == 3:  # deleted, and written again
            sides[1].append(element(20_000 + key, title, later, date=DATES[1]))
        elif fate == 4:  # moved by copying
            sides[1].append(element(30_000 + key, f"copied_{key}", later, date=DATES[1]))
            sides[1].append(element(40_000 + key, title, "", f"Copied {key}#part", date=DATES[1]))
        elif fate == 5 and key > 1:  # merged
            sides[1].append(element(50_000 + key, title, "", "Page 1", date=DATES[1]))
        elif fate != 0:  # else gone
            sides[1].append(element(key, title, later, date=DATES[1]))
        if fate == 6:
            sides[rng.randrange(2)].append(element(60_000 + key, f"Talk:{title}", "Talk", space=1, date=DATES[0]))
    return sides


# --- slow and obvious ---------------------------------------------------------------------------------------


def pages_of(raw):
    """The articles and the redirects of a dump, from the whole of it."""
    articles, redirects = {}, {}
    for page in ET.fromstring(raw).iter("page"):
        title = page.findtext("title").replace("_", " ")
        title = title[:1].upper() + title[1:]
        if page.findtext("ns") != "0":
            continue
        if page.find("redirect") is not None:
            redirects[title] = page.find("redirect").get("title").split("#")[0]
        else:
            articles[page.findtext("id")] = (title, page.findtext("title"), page.findtext("revision/text"))
    return articles, redirects


def became(old, new, redirects):
    """Which new page each old one is, by id: the same id, the same title, or where the title leads to."""
    found = {key: key for key in old if key in new}
    by_title = {title: key for key, (title, *_) in new.items()}
    for step in (by_title.get, lambda title: by_title.get(redirects.get(title))):
        for key, (title, *_) in old.items():
            if key not in found and step(title) is not None and step(title) not in found.values():
                found[key] = step(title)
    return found


def corpus_of(old_raw, new_raw, share=0.02):
    """The rows of old.jsonl and new.jsonl, by id, without their topics."""
    (old, _), (new, redirects) = pages_of(old_raw), pages_of(new_raw)
    pairs = became(old, new, redirects)
    couples = [(key, old[key], new.get(pairs.get(key))) for key in old]
    couples += [(key, None, new[key]) for key in new if key not in pairs.values()]
    rows = {}, {}
    for key, *sides in couples:
        if is_held_out(key, share):
            continue
        texts = [(side[1], plain(side[2]).text) if side else None for side in sides]
        keys = (key, pairs.get(key, key))
        documents = [Document(k, *text) if text and text[1] else None for k, text in zip(keys, texts, strict=True)]
        found = rows_of_pair(*documents)
        for into, some in zip(rows, (found.old, found.new), strict=True):
            into.update({row["id"]: row for row in some})
    return rows


def rows_in(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
