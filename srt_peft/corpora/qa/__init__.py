"""Questions on held-out documents of a corpus: what they are asked of, who makes them, what is checked, who decides.

items      a statement, the passage that it stands in, its split: what a question is made of
values     numbers, dates and names in a statement, and their kinds
cloze      questions from the diffs, without a model
asking     what a model is told, and what is read out of its reply
endpoint   a model behind an OpenAI-compatible address
local      a model in a folder, which writes field by field
checks     what a question must be, each with a name under which a rejection is counted
chosen     which of them make a set that is not answered by its letters, its lengths, or itself
making     all of it, to a file that `srt-peft eval --suite qa=FILE` reads
decisions  what a person said of each question, for ever appended to
page       the page on which they say it
"""
