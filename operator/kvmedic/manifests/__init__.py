"""Where an engine's flag lives in a manifest, and how one flag is changed there; no cluster or file is read.

A place that can't be edited safely gives a `ManifestError`, which is a value.
"""
