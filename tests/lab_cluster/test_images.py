"""Images are named by what they are made of."""

import pytest

from lab.images import Recipe


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "Containerfile").write_text("ARG BASE\nFROM ${BASE}\nCOPY app /app\n")
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "main.py").write_text("print(1)\n")
    return Recipe("app", tmp_path / "Containerfile", context=tmp_path, inputs=[tmp_path / "app"])


def change_source(recipe):
    (recipe.context / "app" / "main.py").write_text("print(2)\n")


def rename_source(recipe):
    (recipe.context / "app" / "main.py").rename(recipe.context / "app" / "other.py")


def change_mode(recipe):
    (recipe.context / "app" / "main.py").chmod(0o755)


def change_containerfile(recipe):
    recipe.containerfile.write_text("ARG BASE\nFROM ${BASE}\n")


@pytest.mark.parametrize("change", [change_source, rename_source, change_mode, change_containerfile])
def test_a_change_of_what_goes_in_gives_another_name(recipe, change):
    before = recipe.key("base")

    change(recipe)

    assert recipe.key("base") != before


def test_another_base_or_argument_gives_another_name(recipe):
    more = Recipe(recipe.name, recipe.containerfile, recipe.context, recipe.inputs, {"A": "1"})

    assert len({recipe.key("base"), recipe.key("other"), more.key("base")}) == 3


def test_bytecode_and_files_outside_the_inputs_do_not_count(recipe):
    before = recipe.key("base")

    (recipe.context / "app" / "__pycache__").mkdir()
    (recipe.context / "app" / "__pycache__" / "main.cpython-311.pyc").write_bytes(b"x")
    (recipe.context / "notes.txt").write_text("x")

    assert recipe.key("base") == before
