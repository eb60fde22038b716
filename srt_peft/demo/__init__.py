"""The demo: a generated world of facts, a small base that knows the old ones, and what updates of it keep and learn.

    world   who there is, what is told of them, and the questions
    base    a word a token, and half a million parameters, trained on the old snapshot
    demo    base, contest, table, and what it means

Only texts and questions are made here: training, schedules and scores are those of every other run.
"""
