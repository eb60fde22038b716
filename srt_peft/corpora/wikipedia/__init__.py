"""Two snapshots of a wiki become old, new, and what supersedes what, whatever their size.

dump.py       MediaWiki's XML in parts that any process may read on its own
snapshot.py   what a snapshot may be: dumps, Parquet, JSONL
wikitext.py   wikitext becomes prose
spool.py      the map: parts become spools of pages, with an index
pairs.py      which page became which
topics.py     the seven topics, and the strata of change
compare.py    the reduce: pairs of pages become rows
choose.py     who is taken, and the corpus that they make
engine.py     processes of this machine, or Ray
build.py      `srt-peft corpus wikipedia`, which is these in a row
"""
