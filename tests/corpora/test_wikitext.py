"""Wikitext becomes what a reader sees as prose."""

import pytest
from hypothesis import given, settings, strategies as st

from srt_peft.corpora.wikipedia.wikitext import RESIDUE, Names, categories, plain

SAYS = {
    "'''Albedo''' is a ''measure''.": "Albedo is a measure.",
    "A [[planet]], the [[Sun|star]], [[:Category:All]], [[wikt:ray|rays]].": "A planet, the star, Category:All, rays.",
    "Kept.[[File:A.jpg|thumb|left|A [[link]] in a {{caption}}]] Also.": "Kept. Also.",
    "Kept.\n[[Image:A.jpg|thumb|px]]\n[[Datei:B.jpg|mini]]\nAlso.": "Kept.\n\nAlso.",
    "Text.\n[[Category:Physics]]\n[[de:Albedo]]\n[[simple:Albedo]]": "Text.",
    "Two.<ref>B, p. 3. {{cite|a=[[b]]}}</ref> Three.<ref name=x /> Four.<!-- no {{ -->": "Two. Three. Four.",
    "A\n{| class=x\n|-\n! h\n|-\n| a || {{b}} [[c]]\n|}\nB": "A\n\nB",
    "{{Infobox|name=[[X]]|y={{z}}}}\n\nText {{citation needed}} here.": "Text here.",
    "It is {{convert|5|km|mi}} long and {{cvt|2|to|3|m|ft}} wide.": "It is 5 km long and 2 to 3 m wide.",
    "The {{lang|de|Reich}}, {{circa|1900}}, {{nowrap|1 m}}.": "The Reich, c. 1900, 1 m.",
    "{{frac|2}}, {{frac|3|4}}, {{frac|5|6|7}}": "1/2, 3/4, 5 6/7",
    "Empty ({{IPA|x}}) and ({{IPA|x}}; born 1900).": "Empty and (born 1900).",
    "1{{ndash}}2 &lt;b&gt; a&nbsp;b x<sup>2</sup><br />y": "1 – 2 a b x2\n\ny",
    "See [http://a.b the site] and [http://a.b].": "See the site and.",
    "A:\n* one ''a''\n* two\n** three\n# four\n: said": "A:\n\n- one a\n- two\n- three\n- four\n\nsaid",
    "Lead.\n== A ==\nText.\n=== B ===\n== C ==\n=== D ===\nMore.": "Lead.\n\nA\n\nText.\n\nD\n\nMore.",
    "A.\n== References ==\n{{x}}\n=== Notes ===\nb\n== C ==\nD.\n== See also ==\n* [[X]]": "A.\n\nC\n\nD.",
    "E <math>a_{b}</math> is <code>x</code> __NOTOC__.": "E is x.",
    "Broken {{ here.\n\nWhole.": "Whole.",
    "": "",
    "{{disambiguation}}": "",
}


@pytest.mark.parametrize("source", SAYS)
def test_what_a_reader_sees(source):
    names = Names(file=("file", "image", "datei"))
    assert plain(source, names).text == SAYS[source]


def test_lines_of_broken_markup_are_left_out_and_counted():
    found = plain("A [[ b.\n\nC.\n\n| d ]] e")
    assert (found.text, found.broken) == ("C.", 2)


def test_categories_are_read_in_the_wikis_own_language():
    source = "[[Kategorie:Physik|Albedo]] [[category: Optics ]] [[:Category:Not this]]"
    assert categories(source, Names(category=("category", "kategorie"))) == ["Physik", "Optics"]


MARKS = (
    "[[ ]] {{ }} {| |} | || - |- ! = == === '' ''' <ref> </ref> <ref/> <br> <!-- --> <nowiki> </nowiki> <div> </div> "
    "<b thumb File: Category: a b. * # : ; &nbsp; &lt; <table> </table> __TOC__ http://a.b [ ] colspan=2"
)
PIECES = st.sampled_from([*MARKS.split(), "\n", "\n\n", "\x01", "\x02"])


@settings(max_examples=300)
@given(st.lists(PIECES, max_size=40).map(" ".join) | st.lists(PIECES, max_size=40).map("".join))
def test_nothing_that_anybody_writes_leaves_markup(source):
    """Whatever is broken: no residue, and no error."""
    text = plain(source).text
    assert not RESIDUE.search(text)
    assert "\x01" not in text
    assert "\x02" not in text
