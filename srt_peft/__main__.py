"""`python -m srt_peft`, and `accelerate launch -m srt_peft`: the same as `srt-peft`."""

import sys

from srt_peft.cli import main

if __name__ == "__main__":
    sys.exit(main())
