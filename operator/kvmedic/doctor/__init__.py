"""Early, all at once: everything that stands between a fleet and a change, before there is trouble.

The rules are those of the operator itself, asked on the same view of a fleet. Where no cluster is there, its
objects come from documents.
"""
