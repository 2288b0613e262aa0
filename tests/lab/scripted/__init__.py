"""The operator's process with scripted metrics and a fast clock, for clusters whose pods serve nothing."""
