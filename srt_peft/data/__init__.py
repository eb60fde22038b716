"""WHAT an example is: text becomes pools of tokenised examples, and pools become batches.

pool        Pool: memory-mapped examples by id, with content identity
corpus      Corpus: an old pool and a new one as one id space, and its decks
ingest      text, JSONL, Parquet, CSV, `datasets` folders and hub names -> a pool to train on and one to hold out
supersedes  which old examples a new one replaces
clusters    decks for a corpus whose sources say nothing

`ingest.ingest` is not named here: it would hide the module that it lives in.
"""

from srt_peft.data.corpus import Corpus as Corpus
from srt_peft.data.pool import Pool as Pool
