"""Scenarios as data, and the one runner that plays them: for the demo, for `make scenarios`, for tests.

A file under `lab/scenarios` says what is played and how it must end; nothing here knows any of them by name.
"""
