"""The one command of a shell's script that starts the engine, with the words that the engine gets.

The script is walked as a shell would run it: what it sets is known further on, what it sets in a
branch, a loop or a function is unknown from there. A place that can't be followed gives a refusal
that names the construct.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tree_sitter import Node

from kvmedic.manifests.expansion import Expansion, Source, Variables, assigned_in
from kvmedic.manifests.grammar import CommandLine
from kvmedic.manifests.programs import ShellStart, engine_start, holds_a_command, program_of, shell_start
from kvmedic.manifests.refusal import Budget, Refusal, RefusalReason
from kvmedic.manifests.tokens import EMPTY, Mark, Place, Token, Traced, item_text
from kvmedic.model.edits import Field
from kvmedic.model.engine import EngineProfile

_TELLING = frozenset(
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
    obstacle: str
    """The construct that makes it unsafe to follow; empty where there is none."""


def engine_in_script(
    shell: ShellStart, container: Mapping[str, object], profile: EngineProfile, variables: Variables
) -> CommandLine | Refusal | None:
    """Return the engine's command line in a shell's script, or None where it starts no engine.

    Raises:
        TooLargeError: the variables' budget is spent.
    """
    walk = Walk(profile, container, variables.budget)
    walk.run_shell(shell, variables, ())
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
        return Refusal(RefusalReason.SHELL_SCRIPT, message)
    if found.obstacle:
        message = f"{name} is started with {found.obstacle} ({found.place}), which is not followed"
        return Refusal(RefusalReason.SHELL_SCRIPT, message)
    return found.line


class Walk:
    """One walk through a script and the scripts within it."""

    def __init__(self, profile: EngineProfile, container: Mapping[str, object], budget: Budget) -> None:
        self.profile = profile
        self.container = container
        self.budget = budget
        self.found: list[_Found] = []
        self.doubts: list[Refusal] = []
        self._functions: set[str] = set()
        self._depth = 0

    def run_shell(self, shell: ShellStart, variables: Variables, within: tuple[str, ...]) -> None:
        """Walk through the script that a shell is given."""
        zero = shell.zero.trace if shell.zero else Traced(shell.program, (Mark(),) * len(shell.program))
        variables.assign("0", zero)
        traces = tuple(token.trace for token in shell.parameters)
        _set_parameters(variables, traces)
        obstacles = (*within, "zsh's own splitting of words") if shell.program == "zsh" else within
        self.run_text(shell.script.trace, shell.script.place, variables, obstacles)

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
        self.doubts.append(Refusal(RefusalReason.SHELL_SCRIPT, f"{what} ({place}), and is not followed"))

    def engine(self, line: CommandLine, place: Place, obstacles: Iterable[str]) -> None:
        """Note a command that starts the engine."""
        self.found.append(_Found(line, place, next(iter(obstacles), "")))

    def define(self, function: str) -> None:
        """Note a function, which takes the place of the program of its name."""
        self._functions.add(function)

    def shadows(self, tokens: Sequence[Token]) -> tuple[str, ...]:
        """Return the functions among the names of programs that a command begins with."""
        return tuple(f"the function {t.text}" for t in tokens if t.text in self._functions)


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
            "subshell": self._apart,
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
                self.variables.forget(assigned_in(node, self.source))

    def _sequence(self, node: Node) -> None:
        for child in node.named_children:
            self.run(child)

    def _apart(self, node: Node) -> None:
        """Walk through statements that leave nothing behind."""
        self._branch(node.named_children)

    def _pipeline(self, node: Node) -> None:
        for child in node.named_children:
            self._branch([child])

    def _branch(self, nodes: Sequence[Node], *obstacles: str) -> None:
        kept = self.variables, self.within
        self.variables, self.within = self.variables.branch(), (*self.within, *obstacles)
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
            self.variables.forget(assigned_in(node, self.source))

    def _branches(self, node: Node) -> None:
        self.variables.forget(assigned_in(node, self.source))
        apart = {"elif_clause", "else_clause", "case_item"}
        self._branch([child for child in node.named_children if child.type not in apart])
        for child in node.named_children:
            if child.type in apart:
                self._branch([child])

    def _loop(self, node: Node) -> None:
        self.variables.forget(assigned_in(node, self.source))
        self._branch(node.named_children, "a loop around it")

    def _function(self, node: Node) -> None:
        name = self.source.text_of(node.named_children[0])
        self.walk.define(name)
        self.variables.never_know(assigned_in(node, self.source))
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
            self.variables.forget(assigned_in(node, self.source))
            return
        expansion = Expansion(self.source, self.variables)
        array = bool(rest) and rest[0].type == "array"
        value = tuple(expansion.words(rest[0].named_children)) if array else expansion.value(rest)
        if expansion.problems or (isinstance(value, Traced) and value.unknown and not value.text):
            self.variables.assign(key, None)
        elif appends:
            self.variables.append(key, value)
        else:
            self.variables.assign(key, value)

    def _declaration(self, node: Node) -> None:
        options = [self.source.text_of(child) for child in node.named_children if child.type == "word"]
        if any(option.startswith("-") for option in options):
            self.variables.forget(assigned_in(node, self.source))
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

    def _start(self, tokens: Sequence[Token], last: Node, obstacles: tuple[str, ...]) -> None:
        """Look at one command: the engine, a shell with a script of its own, or another program."""
        line = engine_start(tokens, self.walk.profile.launch)
        if line is not None:
            obstacles = (*obstacles, *self.walk.shadows(tokens[: len(tokens) - len(line.tokens)]))
            self.walk.engine(replace(line, tail=self._tail(last)), tokens[0].place, obstacles)
            return
        shell = shell_start(tokens)
        if shell is not None:
            self.walk.run_shell(shell, self.variables.in_child(), (*obstacles,))
        elif tokens[0].text == "eval":
            self._eval(tokens[1:], obstacles)
        else:
            self._other(tokens)

    def _eval(self, tokens: Sequence[Token], obstacles: tuple[str, ...]) -> None:
        text = EMPTY
        for token in tokens:
            text += (_BLANK if text.text else EMPTY) + token.trace
        unknown = ("eval of what is not known",) if text.unknown else ()
        place = tokens[0].place if tokens else Place(Field.ARGS, 0)
        self.walk.run_text(text, place, self.variables.branch(), (*obstacles, *unknown))

    def _other(self, tokens: Sequence[Token]) -> None:
        profile, program = self.walk.profile, program_of(tokens[0])
        if program == "set":
            self._set(tokens[1:])
        elif program == "shift":
            self.variables.forget(_PARAMETERS)
        elif program not in _TELLING and _speaks_of(tokens, profile):
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
        if site is None:
            return Token(word.text, word.text, Place(Field.ARGS, 0), word.variables, word.unknown, word)
        whole = item_text(self.walk.container, site.field, site.item)
        line = whole.count("\n", 0, site.start) + 1 if "\n" in whole.strip() else 0
        place = Place(site.field, site.item, site.start, line)
        return Token(word.text, word.text, place, word.variables, word.unknown, word)

    def _tail(self, last: Node) -> Place | None:
        """Return where a further word of a command would stand: behind its last one."""
        marks = self.source.piece(last).marks
        spot = marks[-1].site if marks else None
        return None if spot is None else Place(spot.field, spot.item, spot.stop)


_BLANK = Traced(" ", (Mark(),))


def _speaks_of(tokens: Sequence[Token], profile: EngineProfile) -> bool:
    """Return whether a command is given another one that starts the engine, in words or in one word."""
    whole = any(holds_a_command(token.text, profile.launch) for token in tokens)
    return whole or holds_a_command(" ".join(token.text for token in tokens), profile.launch)


def _words_of(node: Node, redirects: Sequence[Node]) -> list[Node]:
    """Return the nodes of a command's words, in the order of the text.

    The grammar takes what follows a redirection's target for further targets; a shell does not.
    """
    children = node.named_children
    words = [child for child in children if not _is_aside(child)]
    for redirect in (*redirects, *(child for child in children if child.type.endswith("_redirect"))):
        if redirect.type == "file_redirect":
            targets = redirect.children_by_field_name("destination")
            words += targets[1:]
    return sorted(words, key=lambda word: word.start_byte)


def _is_aside(node: Node) -> bool:
    return node.type in {"variable_assignment", "comment"} or node.type.endswith("_redirect")


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
