"""Which words start the engine, a shell or a wrapper; and a shell's script walked to the engine's start.

The script is walked as a shell would run it: what it sets is known further on, what it sets in a
branch, a loop or a function is unknown from there. A place that can't be followed gives an error
that names the construct.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from tree_sitter import Node

from kvmedic.manifests.argument_parser import CommandLine
from kvmedic.manifests.errors import ErrorReason, ManifestError
from kvmedic.manifests.shell_parser import Expansion, Source, Variables, find_assigned_names
from kvmedic.manifests.size_limits import Budget
from kvmedic.manifests.tokens import EMPTY, Place, Token, Traced, item_text, trace_unwritten_text
from kvmedic.model.edits import Field
from kvmedic.model.engine import EngineProfile, Launch

SHELLS = frozenset({"sh", "bash", "ash", "dash", "zsh", "ksh", "busybox"})
TRANSPARENT = frozenset(
    {"env", "tini", "dumb-init", "catatonit", "nice", "ionice", "numactl", "taskset", "stdbuf", "nohup"}
    | {"opentelemetry-instrument", "ddtrace-run", "setsid", "chrt", "timeout", "time", "nsys", "strace"}
    | {"uv", "poetry", "pipenv", "pdm", "hatch", "conda", "mamba", "micromamba", "pixi", "ray"}
    | {"gosu", "su-exec", "sudo", "setpriv", "vault-env", "docker-entrypoint.sh", "nvidia_entrypoint.sh"}
)
"""Programs that run the rest of their arguments as a command, unchanged, in their own process or as
their child."""
BUILTINS = frozenset({"exec", "command", "builtin"})
"""Words of a shell that do the same."""
_PYTHON = re.compile(r"python(?:\d+(?:\.\d+)*)?")
_ALONE = re.compile(r"-[bBdEiIOPqRsSuvx]+")
"""Options of the Python interpreter that take no value; -W and -X take one."""
_SHELL_OPTION = re.compile(r"[-+][A-Za-z]+")
_SHELL_WORDS = ("--rcfile", "--init-file")
"""Long options of bash that take a value."""


@dataclass(frozen=True, slots=True)
class ShellStart:
    """A shell that is given its script as a word."""

    program: str
    script: Token
    zero: Token | None
    """What `$0` is in the script; None: the shell's own name."""
    parameters: tuple[Token, ...]


def program_of(token: Token) -> str:
    """Return the name of the program that a token names, without its path."""
    words = token.text.split(maxsplit=1)
    return PurePosixPath(token.text).name if len(words) < 2 else words[0]


def is_python(token: Token) -> bool:
    """Return whether a token names a Python interpreter."""
    return _PYTHON.fullmatch(program_of(token)) is not None


def engine_start(tokens: Sequence[Token], launch: Launch) -> CommandLine | None:
    """Return the engine's command line where the tokens start it, as they are or through a wrapper."""
    line = command_line_of(tokens, launch)
    if line is not None or not _passes_on(tokens):
        return line
    inner = (command_line_of(tokens[start:], launch) for start in range(1, len(tokens)))
    return next((line for line in inner if line is not None), None)


def shell_start(tokens: Sequence[Token]) -> ShellStart | None:
    """Return the shell and its script where the tokens start one, as they are or through a wrapper."""
    starts = range(len(tokens)) if _passes_on(tokens) else range(1)
    for start in starts:
        if start < len(tokens) and program_of(tokens[start]) in SHELLS:
            return _shell(tokens[start:])
    return None


def command_line_of(tokens: Sequence[Token], launch: Launch) -> CommandLine | None:
    """Return the command line where the first token starts the engine."""
    if not tokens:
        return None
    if program_of(tokens[0]) == launch.executable:
        return _after_subcommand(tokens[1:], launch)
    if not is_python(tokens[0]):
        return None
    rest = _without_interpreter_options(tokens[1:])
    module, rest = _module(rest, launch)
    if module in launch.modules + launch.host_modules:
        return CommandLine(tuple(rest), subcommand=False, hosted=module in launch.host_modules)
    if module in launch.command_modules:
        return _after_subcommand(rest, launch)
    return None


def holds_a_command(text: str, launch: Launch) -> bool:
    """Return whether one text holds a command line that starts the engine."""
    phrase = rf"\b{re.escape(launch.executable)}\s+{re.escape(launch.subcommand)}\b"
    modules = launch.modules + launch.host_modules
    named = any(re.search(rf"-m\s*{re.escape(module)}(?![\w.])", text) for module in modules)
    return named or re.search(phrase, text) is not None


def _passes_on(tokens: Sequence[Token]) -> bool:
    return bool(tokens) and program_of(tokens[0]) in TRANSPARENT | BUILTINS


def _shell(tokens: Sequence[Token]) -> ShellStart | None:
    program = program_of(tokens[0])
    index = 1
    if program == "busybox":
        program, index = program_of(tokens[1]) if len(tokens) > 1 else "", 2
    script = False
    while index < len(tokens):
        text = tokens[index].text
        if text in {"--", "-"}:
            index += 1
            break
        if text.startswith("--"):
            index += 2 if text in _SHELL_WORDS else 1
        elif _SHELL_OPTION.fullmatch(text):
            script = script or ("c" in text and text.startswith("-"))
            index += 1 + text.count("o") + text.count("O")
        else:
            break
    if not script or index >= len(tokens) or program not in SHELLS:
        return None
    zero = tokens[index + 1] if index + 1 < len(tokens) else None
    return ShellStart(program, tokens[index], zero, tuple(tokens[index + 2 :]))


def _after_subcommand(tokens: Sequence[Token], launch: Launch) -> CommandLine | None:
    if tokens and tokens[0].text == launch.subcommand:
        return CommandLine(tuple(tokens[1:]), subcommand=True)
    return None


def _without_interpreter_options(tokens: Sequence[Token]) -> Sequence[Token]:
    start = 0
    while start < len(tokens):
        text = tokens[start].text
        if text in {"-W", "-X"}:
            start += 2
        elif _ALONE.fullmatch(text) or text.startswith(("-W", "-X")):
            start += 1
        else:
            break
    return tokens[start:]


def _module(tokens: Sequence[Token], launch: Launch) -> tuple[str, Sequence[Token]]:
    """Return the module that Python runs, by name or by file, and the tokens after it."""
    if not tokens:
        return "", tokens
    first = tokens[0].text
    if first == "-m":
        return (tokens[1].text, tokens[2:]) if len(tokens) > 1 else ("", ())
    if first.startswith("-m"):
        return first.removeprefix("-m"), tokens[1:]
    path = PurePosixPath(first)
    if path.name == launch.executable and launch.command_modules:
        return launch.command_modules[0], tokens[1:]
    parts = path.with_suffix("").parts if path.suffix == ".py" else ()
    package = launch.modules[0].partition(".")[0]
    start = parts.index(package) if package in parts else len(parts)
    return ".".join(parts[start:]), tokens[1:]


_HARMLESS = frozenset(
    {"echo", "printf", "logger", "pgrep", "pkill", "grep", "egrep", "which", "type", "test", "[", ":", "true"}
)
"""Commands that only speak of what they are given."""
_HIDING = {
    "command_substitution": "a command substitution",
    "process_substitution": "a process substitution",
    "heredoc_body": "a heredoc",
}
_DEEPEST = 4
"""Shells within shells that are followed."""
_SEARCHED = 64
"""Characters that are searched for a command in the time of one step (measured)."""
_NAMED = 5
"""Starts of the engine that a message names, at most."""
_PARAMETERS = ("@", "*", *map(str, range(1, 100)))


@dataclass(frozen=True, slots=True)
class _Found:
    """One command that starts the engine."""

    line: CommandLine
    place: Place
    construct: str
    """The construct that makes it unsafe to follow; empty where there is none."""


def engine_in_script(
    shell: ShellStart, container: Mapping[str, object], profile: EngineProfile, variables: Variables
) -> CommandLine | ManifestError | None:
    """Return the engine's command line in a shell's script, or None where it starts no engine."""
    walk = Walk(profile, container, variables.budget)
    walk.run_shell(shell, variables, ())
    return _one_start(walk, profile)


def engine_in_variable(
    name: str, container: Mapping[str, object], profile: EngineProfile, variables: Variables
) -> CommandLine | ManifestError | None:
    """Return the engine's command line whose options a variable gives to a script of somebody else's.

    The script starts the engine by its subcommand, has the model behind that, and evaluates the variable.
    """
    start = f"{profile.launch.executable} {profile.launch.subcommand} MODEL "
    value = variables.value(name)
    given = value if isinstance(value, Traced) else EMPTY
    walk = Walk(profile, container, variables.budget)
    walk.run_text(trace_unwritten_text(start) + given, Place(Field.ENV, 0), variables, ())
    return _one_start(walk, profile)


def _one_start(walk: Walk, profile: EngineProfile) -> CommandLine | ManifestError | None:
    """Return the one start of the engine that a walk came by; None where it came by none."""
    if walk.doubts:
        return walk.doubts[0]
    if not walk.found:
        return None
    name, found = profile.name, walk.found[0]
    if len(walk.found) > 1:
        places = ", ".join(str(each.place) for each in walk.found[:_NAMED])
        message = (
            f"the script starts {name} {len(walk.found)} times ({places}): which one is meant is not known"
        )
        return ManifestError(ErrorReason.SHELL_SCRIPT, message)
    if found.construct:
        message = f"{name} is started with {found.construct} ({found.place}), which is not followed"
        return ManifestError(ErrorReason.SHELL_SCRIPT, message)
    return found.line


class Walk:
    """One walk through a script and the scripts within it."""

    def __init__(self, profile: EngineProfile, container: Mapping[str, object], budget: Budget) -> None:
        self.profile = profile
        self.container = container
        self.budget = budget
        self.found: list[_Found] = []
        self.doubts: list[ManifestError] = []
        self.functions: set[str] = set()
        """Each takes the place of the program of its name."""
        self._depth = 0

    def run_shell(self, shell: ShellStart, variables: Variables, within: tuple[str, ...]) -> None:
        """Walk through the script that a shell is given."""
        zero = shell.zero.trace if shell.zero else trace_unwritten_text(shell.program)
        variables.assign("0", zero)
        traces = tuple(token.trace for token in shell.parameters)
        _set_parameters(variables, traces)
        constructs = (*within, "zsh's own splitting of words") if shell.program == "zsh" else within
        self.run_text(shell.script.trace, shell.script.place, variables, constructs)

    def run_text(self, text: Traced, place: Place, variables: Variables, within: tuple[str, ...]) -> None:
        """Walk through a script's text."""
        self.budget.enter_field(str(place))
        source = Source(text.piece(0, _end_of(text.text)), self.budget)
        fault = source.fault()
        if fault:
            if self.profile.launch.executable in text.text:
                self.doubt(f"line {fault} of the shell script is not understood", place)
            return
        for node in source.descendants(source.root):
            if node.type in _HIDING and self._holds_a_command(source.text_of(node)):
                self.doubt(f"{self.profile.name} is named in {_HIDING[node.type]}", place)
        if re.search(r"\bIFS=", text.text):
            within = (*within, "another IFS")
        self._depth += 1
        if self._depth > _DEEPEST:
            self.doubt("a shell within a shell within a shell", place)
        else:
            _Script(self, source, variables, within).run(source.root)
        self._depth -= 1

    def _holds_a_command(self, text: str) -> bool:
        self.budget.spend(len(text) // _SEARCHED)
        return holds_a_command(text, self.profile.launch)

    def doubt(self, what: str, place: Place) -> None:
        """Note a place that can't be followed."""
        self.doubts.append(ManifestError(ErrorReason.SHELL_SCRIPT, f"{what} ({place}), and is not followed"))

    def shadows(self, tokens: Sequence[Token]) -> tuple[str, ...]:
        """Return the functions among the names of programs that a command begins with."""
        return tuple(f"the function {t.text}" for t in tokens if t.text in self.functions)


def _end_of(script: str) -> int:
    """Return where a script ends; a last line that is continued by nothing is no part of it.

    A shell takes such a line as its end, and the parser as an error.
    """
    end = len(script)
    while True:
        last = end
        while last and script[last - 1] in " \t":
            last -= 1
        if not script.endswith("\\\n", 0, last) or script.endswith("\\\\\n", 0, last):
            return end
        end = last - 2


class _Script:
    """The statements of one script, one after the other."""

    def __init__(self, walk: Walk, source: Source, variables: Variables, within: tuple[str, ...]) -> None:
        self.walk = walk
        self.source = source
        self.variables = variables
        self.within = within
        self._kinds: dict[str, Callable[[Node], None]] = {
            "program": self._sequence,
            "compound_statement": self._sequence,
            "do_group": self._sequence,
            "negated_command": self._sequence,
            "variable_assignments": self._sequence,
            "elif_clause": self._sequence,
            "else_clause": self._sequence,
            "case_item": self._sequence,
            "subshell": lambda node: self._branch(node.named_children),
            "pipeline": self._pipeline,
            "list": self._list,
            "if_statement": self._branches,
            "case_statement": self._branches,
            "while_statement": self._loop,
            "for_statement": self._loop,
            "c_style_for_statement": self._loop,
            "function_definition": self._function,
            "redirected_statement": self._run_redirect,
            "heredoc_redirect": self._sequence,
            "variable_assignment": self._assignment,
            "declaration_command": self._declaration,
            "command": self._command,
        }

    def run(self, node: Node) -> None:
        """Walk through one statement."""
        kind = self._kinds.get(node.type)
        with self.source.budget.one_deeper():
            if kind is not None:
                kind(node)
            else:
                self.variables.forget(find_assigned_names(node, self.source))

    def _sequence(self, node: Node) -> None:
        for child in node.named_children:
            self.run(child)

    def _pipeline(self, node: Node) -> None:
        for child in node.named_children:
            self._branch([child])

    def _branch(self, nodes: Sequence[Node], *constructs: str) -> None:
        kept = self.variables, self.within
        self.variables, self.within = self.variables.branch(), (*self.within, *constructs)
        for node in nodes:
            self.run(node)
        self.variables, self.within = kept

    def _list(self, node: Node) -> None:
        """Walk through `a && b || c`: what follows `&&` is known to come after what is before it."""
        done: list[Node] = []
        either = False
        for operator, part in _chain(node):
            either = either or operator == "||"
            if either:
                self._forget(done)
            self.run(part)
            done.append(part)
        self._forget(done[1:])

    def _forget(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self.variables.forget(find_assigned_names(node, self.source))

    def _branches(self, node: Node) -> None:
        self.variables.forget(find_assigned_names(node, self.source))
        apart = {"elif_clause", "else_clause", "case_item"}
        self._branch([child for child in node.named_children if child.type not in apart])
        for child in node.named_children:
            if child.type in apart:
                self._branch([child])

    def _loop(self, node: Node) -> None:
        self.variables.forget(find_assigned_names(node, self.source))
        self._branch(node.named_children, "a loop around it")

    def _function(self, node: Node) -> None:
        name = self.source.text_of(node.named_children[0])
        self.walk.functions.add(name)
        self.variables.never_know(find_assigned_names(node, self.source))
        kept = self.variables
        self.variables = kept.branch()
        self.variables.forget(_PARAMETERS)
        self._branch(node.named_children[1:], f"the function {name} around it")
        self.variables = kept

    def _run_redirect(self, node: Node) -> None:
        body = node.child_by_field_name("body")
        redirects = [child for child in node.named_children if child != body]
        if body is not None and body.type == "command":
            self._command(body, redirects)
        elif body is not None:
            self.run(body)
        for redirect in redirects:
            if redirect.type == "heredoc_redirect":
                self._sequence(redirect)

    def _assignment(self, node: Node) -> None:
        name, *rest = node.named_children
        appends = any(child.type == "+=" for child in node.children)
        key = self.source.text_of(name)
        if name.type != "variable_name":
            self.variables.forget(find_assigned_names(node, self.source))
            return
        expansion = Expansion(self.source, self.variables)
        array = bool(rest) and rest[0].type == "array"
        elements = [each for each in rest[0].named_children if each.type != "comment"] if array else []
        value = tuple(expansion.words(elements)) if array else expansion.value(rest)
        if expansion.problems or (isinstance(value, Traced) and value.unknown and not value.text):
            self.variables.assign(key, None)
        elif appends:
            self.variables.append(key, value)
        else:
            self.variables.assign(key, value)

    def _declaration(self, node: Node) -> None:
        options = [self.source.text_of(child) for child in node.named_children if child.type == "word"]
        if any(option.startswith("-") for option in options):
            self.variables.forget(find_assigned_names(node, self.source))
            return
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._assignment(child)

    def _command(self, node: Node, redirects: Sequence[Node] = ()) -> None:
        expansion = Expansion(self.source, self.variables)
        nodes = _words_of(node, redirects)
        words = expansion.words(nodes)
        tokens = [self._token(word) for word in words]
        prefixes = [child for child in node.named_children if child.type == "variable_assignment"]
        if tokens:
            heredoc = ["a heredoc" for r in redirects if r.type == "heredoc_redirect"]
            self._start(tokens, nodes[-1], (*self.within, *heredoc, *expansion.problems))
        self._forget([node, *prefixes])

    def _start(self, tokens: Sequence[Token], last: Node, constructs: tuple[str, ...]) -> None:
        """Look at one command: the engine, a shell with a script of its own, or another program."""
        line = engine_start(tokens, self.walk.profile.launch)
        if line is not None:
            constructs = (*constructs, *self.walk.shadows(tokens[: len(tokens) - len(line.tokens)]))
            line = replace(line, tail=self._tail(last))
            self.walk.found.append(_Found(line, tokens[0].place, next(iter(constructs), "")))
            return
        shell = shell_start(tokens)
        if shell is not None:
            self.walk.run_shell(shell, self.variables.in_child(), (*constructs,))
        elif tokens[0].text == "eval":
            self._eval(tokens[1:], constructs)
        else:
            self._other(tokens)

    def _eval(self, tokens: Sequence[Token], constructs: tuple[str, ...]) -> None:
        text = EMPTY
        for token in tokens:
            text += (_BLANK if text.text else EMPTY) + token.trace
        unknown = ("eval of what is not known",) if text.unknown else ()
        place = tokens[0].place if tokens else Place(Field.ARGS, 0)
        self.walk.run_text(text, place, self.variables.branch(), (*constructs, *unknown))

    def _other(self, tokens: Sequence[Token]) -> None:
        profile, program = self.walk.profile, program_of(tokens[0])
        if program == "set":
            self._set(tokens[1:])
        elif program == "shift":
            self.variables.forget(_PARAMETERS)
        if program in {"set", "shift"} | _HARMLESS:
            return
        texts = [token.text for token in tokens]
        given = any(holds_a_command(text, profile.launch) for text in (*texts, " ".join(texts)))
        if given:
            self.walk.doubt(f"`{program}` starts {profile.name} in its own way", tokens[0].place)

    def _set(self, tokens: Sequence[Token]) -> None:
        texts = [token.text for token in tokens]
        if "--" in texts:
            _set_parameters(self.variables, tuple(t.trace for t in tokens[texts.index("--") + 1 :]))
            return
        bare = (
            t for before, t in zip(["", *texts], texts, strict=False) if not re.match(r"[-+]\w*o$", before)
        )
        if any(not text.startswith(("-", "+")) for text in bare):
            self.variables.forget(_PARAMETERS)

    def _token(self, word: Traced) -> Token:
        """Return a word as a token that knows where it stands."""
        site = word.site or word.origin
        sources = tuple(map(self.variables.source_of, word.unknown))
        known = word.variables, word.unknown, sources, word
        if site is None:
            return Token(word.text, word.text, Place(Field.ARGS, 0), *known)
        whole = item_text(self.walk.container, site.field, site.item)
        line = whole.count("\n", 0, site.start) + 1 if "\n" in whole.strip() else 0
        place = Place(site.field, site.item, site.start, line)
        return Token(word.text, word.text, place, *known)

    def _tail(self, last: Node) -> Place | None:
        """Return where a further word of a command would stand: behind its last one."""
        stretches = self.source.piece(last).stretches
        spot = stretches[-1].site if stretches else None
        return None if spot is None else Place(spot.field, spot.item, spot.stop)


_BLANK = trace_unwritten_text(" ")


def _words_of(node: Node, redirects: Sequence[Node]) -> list[Node]:
    """Return the nodes of a command's words, in the order of the text.

    The grammar takes what follows a redirection's target for further targets; a shell does not.
    """
    children = node.named_children
    aside = {"variable_assignment", "comment"}
    words = [each for each in children if each.type not in aside and not each.type.endswith("_redirect")]
    for redirect in (*redirects, *(child for child in children if child.type.endswith("_redirect"))):
        if redirect.type == "file_redirect":
            targets = redirect.children_by_field_name("destination")
            words += targets[1:]
    return sorted(words, key=lambda word: word.start_byte)


def _chain(node: Node) -> list[tuple[str, Node]]:
    """Return the parts of a list, each with the operator before it; the list's own left part is a list."""
    rest: list[tuple[str, Node]] = []
    while node.type == "list":
        node, sign, *right = node.children
        rest += [(sign.type, part) for part in reversed(right) if part.is_named]
    return [("", node), *reversed(rest)]


def _set_parameters(variables: Variables, traces: tuple[Traced, ...]) -> None:
    for index, trace in enumerate(traces[:99], start=1):
        variables.assign(str(index), trace)
    variables.assign("@", traces)
    variables.assign("*", traces)
