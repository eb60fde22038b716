"""The study: where scheduling helps, at what cost, and what the default should be."""
