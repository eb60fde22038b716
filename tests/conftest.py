"""Every run of the suite tries the same examples; the slow tier looks for others."""

import os
import signal

from hypothesis import settings

# Models of the tests are tiny: a second thread gains nothing, and where others work on the machine it waits for a core
# at every product, which makes a step up to twenty times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell has what it runs in the background ignore Ctrl-C, and so would the commands that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")
