"""Frozen data and pure functions: what is seen, what it means, what to do next. Standard library only."""
