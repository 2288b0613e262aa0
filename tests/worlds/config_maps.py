"""A ConfigMap with a file of an engine, and an edit of one value in it."""

from __future__ import annotations

from kvmedic.model.config_edits import Contents, FileEdit, copy_name, with_value

SECRET = "s3cret"
CONTENTS = Contents({"engine.yaml": f"max-num-seqs: 64\napi-key: {SECRET}\n", "other": "x"}, {"logo": "AAAA"})


def an_edit(contents: Contents = CONTENTS, value: str = "16") -> FileEdit:
    changed = with_value(contents, "engine.yaml", slice(14, 16), value)
    name = copy_name("limits", changed, "uid")
    return FileEdit("limits", name, "engine.yaml", 14, "64", value, contents.digest, changed.digest)
