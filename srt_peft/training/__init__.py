"""HOW the model learns from what it is shown.

nll         each example's NLL and the loss, from the forward pass that training makes anyway
model       the base with its adapter, quantised or whole; the tokenizer; the optimiser
recipe      what a run is asked to do, checked                   loop        the steps of a run
checkpoint  adapter, optimiser and review state in one folder    run         the recipe's parts, put together
"""
