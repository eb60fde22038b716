"""WHAT an example is: text becomes pools of tokenised examples, and pools become batches.

pool    Pool: memory-mapped examples by id, with content identity; Corpus: an old and a new one as one id space
ingest  text, JSONL, Parquet, CSV, `datasets` folders and hub names -> a pool to train on and one to hold out

`ingest.ingest` is not named here: it would hide the module that it lives in.
"""

from srt_peft.data.pool import Corpus as Corpus, Pool as Pool
