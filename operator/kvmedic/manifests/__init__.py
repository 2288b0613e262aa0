"""Where an engine's flag lives in a manifest, and how one flag is changed there.

`flags.read_flags` and `flags.edit` work on one container of a pod template; they are what the
operator calls. `documents` finds containers in the text of a manifest file, and `splice` changes one
token of that text. Nothing here reads a cluster or a file.

A place that can't be edited safely gives a `Refusal`, which is a value: what a script does only at run
time, lists behind YAML aliases, variables from elsewhere, configuration files.
"""
