"""Code: from clones of git repositories to old and new files.

clones.py       which repositories were given, and which of them are old or new: by dates
languages.py    the paper's languages
unwanted.py     vendored, generated, minified and binary files
headers.py      what a file opens with
credentials.py  secrets
licences.py     what a file is under, as SPDX says it
scan.py         one repository becomes rows
build.py        all of them become a corpus, which is `srt-peft corpus code`: near-duplicates, caps, what is held out
tally.py        what is counted, and how it is told
"""
