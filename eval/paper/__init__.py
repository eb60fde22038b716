"""The paper's tables, each with a recipe and one command, at two scales: `python -m eval.paper --help`."""
