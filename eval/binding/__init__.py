"""Does scheduling bind: schedulers on a generated world and on a mixture of real text. See README.md."""
