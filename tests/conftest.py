"""Every run of the suite tries the same examples; the slow tier looks for others."""

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")
