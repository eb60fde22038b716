"""From two dated snapshots to old, new, and what supersedes what.

    documents.py   a document, and what a row of a corpus is
    sentences.py   where a text's sentences are, and when two say the same
    diffs.py       what changed between two texts: inserted, deleted, modified
    rows.py        the rows of a pair of documents: `rows_of_pair`; and who is held out
    near.py        near-duplicates: `NearDuplicates`
    folder.py      the folder that comes out, all or nothing, gone on with after a kill: `staged`
    writing.py     rows become the files of a corpus, near-duplicates left out, and a recipe that reads them
    tables.py      the paper's table of a corpus
    align.py       which document became which
    snapshots.py   folders and tables as documents
    commits.py     git commits as documents
    text.py        `srt-peft corpus text`, which is these in a row

Wikipedia's dumps, code repositories and questions stand in files of their own, on the same ground. Nothing here imports
torch or transformers; the libraries of the extra `corpora` are imported by the functions that need them.
"""
