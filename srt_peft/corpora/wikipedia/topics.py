"""The paper's seven topics, and how much a page changed: the strata that a corpus is balanced over.

The paper does not say how a topic was found. Here each of a page's categories counts for the topics whose words are in
its name, a long name no more than a short one, and the topic with the most has the page; of equals, the one that is
named first below. Where the categories name none, or there are none, as in Parquet, the words of the title and of the
first sentence decide: "is an American politician" names what a page is about in nearly all. Where these name none
either, the topic is `other`. The words are English; of another wiki all pages are `other`.

How much a page changed is the share of its sentences, old and new, that stand in one of the two texts only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

TOPICS = {
    "current affairs": """
        conflicts? wars? invasions? attacks? bombings? shootings? massacres? earthquakes? hurricanes? floods?
        wildfires? disasters? accidents? crashe?s? pandemics? epidemics? protests? riots? strikes? terrorism
        terrorists? refugees? crisis crises ongoing 202[0-9]_events uprisings? coups? hostages? famines?
        insurgency
    """,
    "politics": """
        politics political politicians? elections? electoral parliaments? parliamentary senators? senate
        congress presidents? presidential presidency ministers? ministry governments? governors? mayors? party
        parties democrats? republicans? socialists? communists? communism socialism anarchism anarchists?
        monarchs? monarchy kings? queens? emperors? empires? diplomats? diplomacy ambassadors? legislators?
        legislatures? republics? states_of heads_of_state ideolog(?:y|ies) activists? activism nationalism
        liberalism conservatism campaigns? referendums? candidates? foreign_relations sovereignty
    """,
    "computer science and AI": """
        comput(?:er|ers|ing|ation|ational) software programming algorithms? artificial_intelligence
        machine_learning neural_networks? data_structures? operating_systems? internet websites? web
        cryptography databases? programmers? information_technology microprocessors? unix linux file_formats?
        network_protocols? protocols character_encodings? encodings? robotics video_game_hardware
        instruction_set automata compilers? cybersecurity hackers? digital chatbots? information_theory
        semiconductors? cpus? source_code open_source
    """,
    "business and economics": """
        business(?:es)? compan(?:y|ies) corporations? econom(?:y|ies|ic|ics|ists?) bank(?:s|ing|ers?)
        financ(?:e|ial|iers?) industr(?:y|ies|ial|ialists?) trade markets? marketing currenc(?:y|ies)
        entrepreneurs? investors? investment manufacturers? manufacturing retail brands? stock_exchanges?
        taxation taxes money accounting management commerce commercial airlines? founded_in_business
        billionaires? insurance employment labou?r products
    """,
    "law and policy": """
        laws? legal lawyers? court courts judges? justices? legislation acts? constitutions? constitutional
        treat(?:y|ies) rights crimes? criminals? criminology policy policies regulations? statutes? police
        prisons? punishment trials? case_law jurisprudence jurists? attorneys? murder(?:s|ers?)? convicted
        executed patents? copyrights? licenses? abolition human_rights amendment amendments immigration
        censorship
    """,
    "science and medicine": """
        scien(?:ce|ces|tific|tists?) physics physicists? chem(?:istry|ical|icals|ists?) biolog(?:y|ical|ists?)
        medic(?:al|ine|ines) medications? drugs? disease diseases disorders? syndromes?
        mathemat(?:ics|ical|icians?) astronom(?:y|ical|ers?) planets? stars geolog(?:y|ical|ists?) species
        animals? plants? mammals? birds? fish(?:es)? insects? reptiles? genera genus taxa anatomy physiology
        psychology psycholog(?:ical|ists?) psychiatry neurolog(?:y|ical) neuroscience genetics genes? proteins?
        elements? compounds? molecules? vitamins? bacteria virus(?:es)? vaccines? physicians? surgeons? surgery
        health hospitals? engineering engineers? ecology evolution climate theorems? algebra geometry calculus
        statistics statisticians? logic particles? spacecraft space_exploration astronauts? nasa minerals?
        metals? actinides? halogens? acids? alkaloids? paleontology dinosaurs? fossils? units_of_measurement
        meteorology archaeology anthropolog(?:y|ical|ists?) linguistics family_of
    """,
    "sports and entertainment": """
        sports? sporting sportspeople football(?:ers?)? soccer basketball baseball hockey cricket(?:ers?)?
        tennis golf(?:ers?)? rugby olympics? olympic athletes? athletics players? coaches teams? clubs? leagues?
        championships? tournaments? racing drivers boxing boxers? wrestl(?:ing|ers?) chess games? gaming films?
        movies? cinema directors actors? actress(?:es)? television tv series episodes? entertain(?:ment|ers?)
        music(?:al|als|ians?)? songs? albums? singers? bands? composers? concerts? rappers? opera operas theatre
        theater dance dancers? comedians? comedy celebrit(?:y|ies) novels? novelists? fiction fictional comics?
        anime manga cartoons? animat(?:ed|ion|ors?) musicals? guitarists? awards? festivals? video_games? radio
        media_franchises screenwriters? poets? poetry
    """,
}
"""The topics, by the words that name them; in the order that decides between equals. `_` is a space."""
OTHER = "other"
NAMES = (*TOPICS, OTHER)

LIMITS = {"small": 0.05, "medium": 0.25}
"""Up to which share of sentences a page counts as changed that much; beyond is `large`."""
STRATA = ("unchanged", *LIMITS, "large", "created", "gone")

_WORDS = {
    topic: re.compile(rf"\b(?:{'|'.join(words.split()).replace('_', ' ')})\b", re.IGNORECASE)
    for topic, words in TOPICS.items()
}
_OPENING = 300
"""Of a text's characters, at most, that are its first sentence."""
_KEPT = re.compile(
    r"(?i)\b(?:articles?|pages?|wikipedia|cs1|use|webarchive|commons|wikidata|infobox|stubs?|dates?|births|deaths)\b"
)
"""Categories that say how a page was made, or when somebody lived, and not what it is about."""


def topic_of(title: str, text: str, categories: Iterable[str]) -> str:
    """What a page is about."""
    about = [name for name in categories if not _KEPT.search(name)]
    return _most(about) or _most([title, _first_sentence(text)]) or OTHER


def _most(names: Iterable[str]) -> str | None:
    votes: Counter[str] = Counter()
    for name in names:
        plain = name.replace("_", " ")
        votes.update(topic for topic, words in _WORDS.items() if words.search(plain))
    return max(TOPICS, key=lambda topic: votes[topic]) if votes else None


def _first_sentence(text: str) -> str:
    opening = text[:_OPENING]
    return opening.partition("\n")[0].partition(". ")[0]


def stratum_of(kind: str, changed: int, sentences: int) -> str:
    """How much a page changed: of so many sentences, old and new, so many stand in one text only."""
    if kind in ("created", "gone"):
        return kind
    if not changed:
        return "unchanged"
    share = changed / max(1, sentences)
    return next((name for name, most in LIMITS.items() if share <= most), "large")
