"""The life between updates: what one leaves to the next, and what is taken back."""
