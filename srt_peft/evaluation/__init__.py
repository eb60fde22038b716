"""Was the old kept, was the new learned, and is the difference real: suites, scores, statistics, tables.

records    scored things and their files          bootstrap  means, intervals and tests, from resampling
questions  multiple-choice files, checked         verdict    may it ship?
likelihood log-likelihoods of continuations       compare    several models on the same questions
qa  broad  probes  perplexity  the suites         tables     the comparison for a terminal, Markdown, LaTeX, JSON
targets    a checkpoint, a run or a base, loaded  suites     the suites by name, as the command line asks for them
kept       what a run was asked already, read
rivals     one recipe under several schedulers    entries  exposure  paired  scoreboard  its parts
"""
