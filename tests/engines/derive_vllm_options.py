"""Derive the table of vLLM's command-line options from its sources.

    python tests/engines/derive_vllm_options.py SOURCES > operator/kvmedic/engines/vllm_options.tsv

SOURCES holds one folder per release, named by its version, with the release's `vllm` package in it
(unpacked from its source distribution; nothing is imported or run). To take up a new release, unpack
it beside the others and run this again over all of them.

Options are found where vLLM declares them: `add_argument` calls, the fields of its configuration
classes that these calls refer to, and the fields of the front end's classes. How a field's annotation
becomes an argument follows `_compute_kwargs` in vLLM's `engine/arg_utils.py`.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeGuard

from kvmedic.model.engine import Version

HUMAN = {
    "max_num_batched_tokens",
    "max_num_scheduled_tokens",
    "kv_cache_memory_bytes",
    "max_num_queued_tokens",
}
HUMAN |= {"safetensors_prefetch_block_size"}
"""Fields that vLLM lists as human-readable integers by name (`_compute_kwargs`, 0.32)."""
JSON_FRONTEND = {"allowed_origins", "allowed_methods", "allowed_headers"}
ONE_BY_ONE = {"middleware", "disable_access_log_for_endpoints"}
"""Front-end lists that take one token each (`_customize_cli_kwargs`, 0.32)."""
CHECKED = {"--kv-cache-dtype", "--block-size"}
"""Options whose choices are listed. Those of others depend on the platform and on plugins."""
TYPES = {"int": "int", "float": "float", "str": "text", "human_readable_int": "human"}
TYPES |= {"human_readable_int_or_auto": "human-auto", "nullable_str": "text"}


@dataclass(frozen=True)
class Shape:
    """How one option reads in one release."""

    arity: str
    kind: str
    nullable: bool = False
    choices: tuple[str, ...] = ()


@dataclass
class Release:
    """What one release's sources declare."""

    version: Version
    fields: dict[str, dict[str, ast.expr]] = field(default_factory=dict)
    bases: dict[str, list[str]] = field(default_factory=dict)
    dataclasses: set[str] = field(default_factory=set)
    aliases: dict[str, ast.expr] = field(default_factory=dict)
    options: dict[tuple[str, ...], Shape] = field(default_factory=dict)

    def read(self, folder: Path) -> None:
        """Fill the release from its folder."""
        trees = {path: ast.parse(path.read_text()) for path in sources(folder)}
        for tree in trees.values():
            self._declarations(tree)
        for path, tree in trees.items():
            if path.name in {"arg_utils.py", "cli_args.py", "serve.py", "scripts.py"}:
                self._calls(path, tree)
        for name in self.fields:
            if name.endswith("FrontendArgs"):
                self._frontend(name)

    def _declarations(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self.bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
                self.fields[node.name] = {
                    item.target.id: item.annotation
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                }
                if any(
                    "config" in ast.unparse(d) or "dataclass" in ast.unparse(d) for d in node.decorator_list
                ):
                    self.dataclasses.add(node.name)
            elif (
                isinstance(node, ast.Assign)
                and len(node.targets) == 1
                and isinstance(node.targets[0], ast.Name)
            ):
                if isinstance(node.value, ast.Subscript | ast.BinOp):
                    self.aliases.setdefault(node.targets[0].id, node.value)
            elif _is_type_alias(node):
                self.aliases.setdefault(node.target.id, node.value)

    def _calls(self, path: Path, tree: ast.Module) -> None:
        kwargs_of: dict[str, str] = {}
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef) or not declares_serving(path, function):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Assign) and _is_call_of("get_kwargs", node.value):
                    kwargs_of[ast.unparse(node.targets[0])] = ast.unparse(node.value.args[0])
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("add_argument"):
                    self._call(node, kwargs_of)

    def _call(self, call: ast.Call, kwargs_of: dict[str, str]) -> None:
        names = tuple(
            a.value for a in call.args if isinstance(a, ast.Constant) and str(a.value).startswith("-")
        )
        if not names:
            return
        keywords = {k.arg: k.value for k in call.keywords if k.arg}
        for spread in (k.value for k in call.keywords if k.arg is None):
            for node in ast.walk(spread):
                if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                    shape = self.of_field(kwargs_of[ast.unparse(node.value)], str(node.slice.value))
                    self.add(names, shape)
                    return
        self.add(names, self.of_keywords(keywords))

    def of_keywords(self, keywords: dict[str, ast.expr]) -> Shape:
        """Return the shape that explicit keywords of `add_argument` give."""
        action = ast.unparse(keywords["action"]).strip("'\"") if "action" in keywords else "store"
        arity = {"'+'": "+", "'*'": "+", "'?'": "?"}.get(
            ast.unparse(keywords["nargs"]) if "nargs" in keywords else ""
        )
        if action in {"store_true", "store_false"}:
            return Shape("0", "presence")
        if action.endswith("BooleanOptionalAction"):
            return Shape("0", "switch")
        if action == "StoreBoolean":
            return Shape("?", "truth")
        kind = ast.unparse(keywords["type"]) if "type" in keywords else "str"
        nullable = kind.startswith(("optional_type(", "nullable_"))
        inner = kind.removeprefix("optional_type(").removesuffix(")")
        listed = keywords.get("choices")
        choices = (
            tuple(str(c.value) for c in ast.walk(listed) if isinstance(c, ast.Constant)) if listed else ()
        )
        return Shape(arity or "1", TYPES.get(inner, "text"), nullable, choices)

    def of_field(self, owner: str, name: str) -> Shape:
        """Return the shape that a configuration class's field gives."""
        annotation = self._annotation(owner, name)
        hints = set(self._hints(annotation))
        nullable = "None" in hints
        if hints & self.dataclasses:
            return Shape("1", "text", nullable)
        if hints == {"bool", "str", "None"}:
            return Shape("?", "text", False)
        if "bool" in hints:
            return Shape("0", "switch")
        literals = [self._literal(hint) for hint in hints if hint.startswith("Literal")]
        if literals:
            numbers = all(isinstance(item, int) for item in literals[0])
            choices = () if "str" in hints else tuple(str(item) for item in literals[0])
            return Shape("1", "int" if numbers else "text", nullable, choices)
        if any(hint.split("[")[0] in {"list", "List", "tuple", "Tuple", "set", "Set"} for hint in hints):
            return Shape("+", "text", nullable)
        if "int" in hints:
            kind = "human-auto" if name == "max_model_len" and self._knows_auto() else "int"
            return Shape(
                "1",
                "human" if name in HUMAN or (name == "max_model_len" and kind == "int") else kind,
                nullable,
            )
        if "float" in hints:
            return Shape("1", "float", nullable)
        return Shape("1", "text", nullable)

    def _knows_auto(self) -> bool:
        return "auto-max-model-len" in self.aliases

    def _literal(self, hint: str) -> list[object]:
        return [item.value for item in ast.walk(ast.parse(hint)) if isinstance(item, ast.Constant)]

    def _annotation(self, owner: str, name: str) -> ast.expr:
        if name in self.fields.get(owner, {}):
            return self.fields[owner][name]
        for base in self.bases.get(owner, []):
            try:
                return self._annotation(base, name)
            except KeyError:
                continue
        raise KeyError(f"{self.version}: {owner}.{name}")

    def _hints(self, annotation: ast.expr) -> Iterator[str]:
        """Yield the parts of a union, with aliases resolved."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        text = ast.unparse(annotation)
        if isinstance(annotation, ast.BinOp):
            yield from self._hints(annotation.left)
            yield from self._hints(annotation.right)
        elif text.startswith(("Optional[", "Union[", "Annotated[", "SkipValidation[")):
            inner = annotation.slice  # type: ignore[attr-defined]
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            for part in parts[:1] if text.startswith("Annotated[") else parts:
                yield from self._hints(part)
            if text.startswith("Optional["):
                yield "None"
        elif text in self.aliases:
            yield from self._hints(self.aliases[text])
        else:
            yield text

    def _frontend(self, owner: str) -> None:
        for name in self.fields[owner]:
            shape = self.of_field(owner, name)
            if name in JSON_FRONTEND or name in ONE_BY_ONE:
                shape = Shape("1", "text", shape.nullable)
            self.add(("--" + name.replace("_", "-"),), shape)

    def add(self, names: tuple[str, ...], shape: Shape) -> None:
        """Take up an option, with the negative spelling of a switch."""
        if shape.kind == "switch":
            names += tuple("--no-" + name[2:] for name in names if name.startswith("--"))
        if names[0] not in CHECKED:
            shape = replace(shape, choices=())
        self.options[names] = shape


def _is_type_alias(node: ast.AST) -> TypeGuard[ast.AnnAssign]:
    return isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias"


def _is_call_of(name: str, node: ast.expr) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == name


def sources(folder: Path) -> Iterator[Path]:
    """Yield the files of a release that declare options or their types."""
    package = folder / "vllm"
    yield from (path for path in package.glob("config*") if path.suffix == ".py")
    yield from package.glob("config/*.py")
    yield package / "engine" / "arg_utils.py"
    yield from package.glob("entrypoints/*/cli_args.py")
    yield from package.glob("entrypoints/cli/serve.py")
    yield from package.glob("scripts.py")


def declares_serving(path: Path, function: ast.FunctionDef) -> bool:
    """Return whether a function declares options of the server."""
    if path.name == "scripts.py":
        return False
    return function.name in {"add_cli_args", "make_arg_parser", "subparser_init", "cli_args"}


def main(folder: Path) -> None:
    """Print the table."""
    releases = []
    for path in sorted(folder.iterdir(), key=lambda p: Version.parse(p.name)):
        release = Release(Version.parse(path.name))
        if "human_readable_int_or_auto" in (path / "vllm" / "engine" / "arg_utils.py").read_text():
            release.aliases["auto-max-model-len"] = ast.Constant(value=None)
        release.read(path)
        release.add(("--config",), Shape("1", "text"))
        release.add(("--help", "-h"), Shape("0", "help"))
        releases.append(release)
    print("releases\t" + " ".join(str(release.version) for release in releases))
    for line in sorted(rows(releases)):
        print(line)


def rows(releases: list[Release]) -> Iterator[str]:
    """Yield one line per option and run of releases in which it reads the same."""
    for names in {names for release in releases for names in release.options}:
        start = None
        for index in range(len(releases) + 1):
            shape = releases[index].options.get(names) if index < len(releases) else None
            before = releases[index - 1].options.get(names) if index else None
            if shape == before:
                continue
            if before is not None and start is not None:
                yield row(names, before, releases[start].version, releases[index - 1].version)
            start = index


def row(names: tuple[str, ...], shape: Shape, since: Version, until: Version) -> str:
    """Return one line of the table."""
    kind = shape.kind + ("?" if shape.nullable else "")
    return "\t".join((" ".join(names), shape.arity, kind, str(since), str(until), " ".join(shape.choices)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
