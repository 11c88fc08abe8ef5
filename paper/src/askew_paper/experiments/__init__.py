"""The experiments of the paper, and four beyond it."""
