"""Frozen data of every stage, and no judgement: what is seen, planned, done and written down."""
