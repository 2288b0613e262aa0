"""From the advice to turn a method of compression off to a plan: all of its settings, or none.

Each setting is looked for where the engine would read it. One that cannot be edited for sure keeps the whole
bundle from being touched: half a bundle is a setting that nobody ever ran.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kvmedic.manifests.argument_parser import Given, Parsed, options_of
from kvmedic.manifests.engine_file import Configuration
from kvmedic.manifests.errors import ManifestError
from kvmedic.manifests.flags import AlreadySet, edit, option_setting_of, parse_line, remove_option
from kvmedic.model.compression import OFF_WORDS, BundleSetting
from kvmedic.model.edits import COMMAND_LINE, BundleEdit, BundlePart, EnvEdit, Field, container_at, literal_of
from kvmedic.model.engine import Kind, Option, OptionName
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import template_hash
from kvmedic.model.plan import BundleStep, Plan
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Fix
from kvmedic.runbooks.branches import TurnOff, TurnOn
from kvmedic.runbooks.compression.allowed_settings import is_own_value, spell_flag
from kvmedic.runbooks.workload import Workload, explain_manifest_error, with_template

_PLAIN = r"(?i:-?\d{0,9}(\.\d{1,9})?|true|false|yes|no|on|off|/[\w./-]*)"
"""Values that are no secret."""
_SWITCHES = frozenset({Kind.SWITCH, Kind.PRESENCE})


@dataclass(frozen=True, slots=True)
class Turned:
    """What becomes of one setting."""

    parts: tuple[BundlePart, ...] = ()
    """Empty: it is off already."""
    before: str = ""
    """The setting as it is given now, for people; empty where it is not."""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Edited:
    """What becomes of several settings together."""

    change: BundleEdit
    before: tuple[str, ...]
    """The settings as they are given now, for people; one that is not given has no place."""
    after: tuple[str, ...]


def bundle_plan(workload: Workload, advice: TurnOff, generation: int) -> Plan | Blocked:
    """Return the plan that turns a method off, or why that cannot be done; `generation`: of the spec."""
    found = edit_settings(workload, advice.settings[::-1])
    if isinstance(found, Blocked):
        return Blocked(found.reason, f"{advice.method} cannot be turned off as a whole: {found.message}")
    if found is None:
        return Blocked(
            Reason.FLAG_NOT_EDITABLE,
            f"{advice.method} is off already, as far as its settings show: see what overrides them, "
            "such as the image's entry point",
        )
    before, after = (", ".join(reversed(each)) for each in (found.before, found.after))
    off = f"off ({after})" if after else "off"
    values = found.change, before or "on", off, advice.reason, advice.message, advice.undoes
    return turning_plan(workload, TurnOn(Fix.REVERT_BUNDLE, advice.method, *values), generation)


def turning_plan(workload: Workload, advice: TurnOn, generation: int) -> Plan:
    """Return the plan that makes all edits of a bundle at once; `generation`: of the spec."""
    step = BundleStep(
        target=workload.target,
        container=str(workload.container.get("name")),
        method=advice.method,
        edit=advice.change,
        before=advice.before,
        after=advice.after,
        before_template=template_hash(workload.template),
        after_template=template_hash(advice.change.apply(workload.template)),
        reason=advice.reason,
        fix=advice.fix,
        undoes=advice.undoes,
    )
    before = step.before_template
    return Plan((step,), workload.target_uid, before, generation, advice.reason, advice.message)


def edit_settings(workload: Workload, settings: Sequence[BundleSetting]) -> Edited | Blocked | None:
    """Return the edits that give each of some settings its value without a method, in this order.

    None where all have it. Values of a method's own are given by the same settings the other way round.
    """
    template, found = workload.template, list[Turned]()
    for setting in settings:
        container = container_at(template, workload.container_index) or {}
        turned = _turn_setting(workload, container, setting)
        if isinstance(turned, Blocked):
            return turned
        for part in turned.parts:
            template = part.apply(template)
        found.append(turned)
    parts = tuple(part for turned in found for part in turned.parts)
    if not parts:
        return None
    before, after = (
        tuple(filter(None, (getattr(each, side) for each in found))) for side in ("before", "after")
    )
    return Edited(BundleEdit(parts), before, after)


def unrecorded_setting(
    workload: Workload, settings: Sequence[BundleSetting], earlier: Iterable[object]
) -> str:
    """Return which setting would get a value that nobody ever ran, with what to do; empty: none would.

    Turning a method off removes its settings, gives them their own word for off, or puts back what an earlier
    revision of the workload had.

    Args:
        earlier: pod templates that the workload had.
    """
    for setting in settings:
        name = setting.env or spell_flag(setting.flag)
        if setting.off is None or is_own_value(name, setting.off) or is_off(workload, (setting,)):
            continue
        known = (with_template(workload, each) for each in earlier if isinstance(each, Mapping))
        if not any(isinstance(each, Workload) and is_off(each, (setting,)) for each in known):
            return (
                f"{name}={setting.off}, as `before` says, is in no earlier revision of the Deployment: leave "
                "`before` out to have it removed, or change it by hand"
            )
    return ""


def reversed_of(settings: Iterable[BundleSetting]) -> list[BundleSetting]:
    """Return settings whose value without the method is that with it, and the other way round."""
    return [replace(each, on=each.off, off=each.on) for each in settings]


def is_on(workload: Workload, settings: Sequence[BundleSetting]) -> bool:
    """Return whether each of some settings is known to be on already; False where there is none."""
    return bool(settings) and edit_settings(workload, reversed_of(settings)) is None


def is_off(workload: Workload, settings: Sequence[BundleSetting]) -> bool:
    """Return whether each of some settings is known to be off already; False where there is none.

    Asked at each look, so variables come first: they are known without reading the command line again.
    """
    ordered = sorted(settings, key=lambda each: not each.env)
    found = (_turn_setting(workload, workload.container, each) for each in ordered)
    return bool(settings) and all(isinstance(each, Turned) and not each.parts for each in found)


def _turn_setting(
    workload: Workload, container: Mapping[str, object], setting: BundleSetting
) -> Turned | Blocked:
    if setting.env:
        return _variable(container, workload.container_index, setting)
    name = spell_flag(setting.flag)
    option = next((one for one in options_of(workload.engine) if name in one.names), None)
    is_own = container is workload.container
    line = workload.line if is_own else parse_line(container, workload.engine)
    if option is None:
        version = workload.engine.effective_version
        text = f"{workload.engine.profile.name} {version} is not known to have {name}: take it off by hand"
        return Blocked(Reason.FLAG_UNKNOWN_TO_ENGINE, text)
    if isinstance(line, ManifestError):
        return explain_manifest_error(line)
    return _option(_Place(workload, container, line, option, name), setting)


def _variable(container: Mapping[str, object], index: int, setting: BundleSetting) -> Turned | Blocked:
    name, variables = setting.env, container.get(Field.ENV)
    items = variables if isinstance(variables, list) else []
    places = [at for at, item in enumerate(items) if isinstance(item, Mapping) and item.get("name") == name]
    present = literal_of(items[places[0]]) if places else None
    if doubt := _doubt_variable(container, setting, [items[at] for at in places]):
        return Blocked(Reason.FLAG_NOT_EDITABLE, doubt)
    words = {(value or "").strip().lower() for value in (present, setting.off)}
    if present == setting.off or words <= OFF_WORDS:
        return Turned()
    # A value may stand in a status, from which it is put back, where the spec or the method's description has
    # it already, or where it is a number, a switch or a path. Anything else may be a secret.
    is_known = present is None or present in {setting.on, setting.off}
    if not is_known and re.fullmatch(_PLAIN, (present or "").strip()) is None:
        text = (
            f"{name} has another value than the settings of the method say: give the present one in the "
            "spec, or change it by hand"
        )
        return Blocked(Reason.FLAG_NOT_EDITABLE, text)
    place = places[0] if places else len(items)
    change = EnvEdit(str(container.get("name")), index, name, place, present, setting.off)
    before, after = (None if value is None else f"{name}={value}" for value in (present, setting.off))
    return Turned((change,), before or "", after or "")


def _doubt_variable(container: Mapping[str, object], setting: BundleSetting, given: list[object]) -> str:
    """Return why a variable is not as plain as an edit of it needs, with what to do; empty where it is."""
    name = setting.env
    if len(given) > 1:
        return f"{name} is given {len(given)} times: leave one of them"
    if given and literal_of(given[0]) is None:
        return f"the value of {name} comes from another object (valueFrom): change it there"
    if container.get("envFrom") and setting.off is None:
        return (
            f"{name} may also come from an object in envFrom: take it out there, and the object off the list"
        )
    word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    for field in (*COMMAND_LINE, Field.ENV):
        items = container.get(field)
        for index, item in enumerate(items if isinstance(items, list) else ()):
            text = item.get("value") if isinstance(item, Mapping) else item
            if isinstance(text, str) and word.search(text):
                return f"{name} is also read or set in {field}[{index}]: take it off there"
    return ""


@dataclass(frozen=True, slots=True)
class _Place:
    """One option of the engine, and the command line that may give it."""

    workload: Workload
    container: Mapping[str, object]
    line: Parsed
    option: Option
    name: str
    """As the setting spells it."""

    @property
    def known_as(self) -> OptionName:
        """Return the option by its plain name: `--x` also where the setting is `--no-x`."""
        plain = self.name
        if self.option.kind in _SWITCHES:
            plain = next(one for one in self.option.names if not one.startswith("--no-"))
        return OptionName(plain, self.option.dest)

    def is_meant(self, use: Given) -> bool:
        """Return whether a use of the option is the setting: `--x` is not where the setting is `--no-x`."""
        return self.option.kind not in _SWITCHES or use.value is not self.name.startswith("--no-")

    def find_use_in_file(self) -> Given | None:
        """Return what the configuration file, where it was read, gives the option."""
        read = self.workload.in_file
        return read.last(self.option.dest) if read else None

    def is_filed_off(self, off: str | None) -> bool:
        """Return whether the configuration file gives the option as it is without the method."""
        given = self.find_use_in_file()
        if given is None or off is None or not self.is_meant(given):
            return False
        return self.option.kind in _SWITCHES or _text_of(given) == off


def _option(place: _Place, setting: BundleSetting) -> Turned | Blocked:
    use, off = place.line.last(place.option.dest), setting.off
    values = _text_of(use) if use is not None else ""
    is_given = use is not None and place.is_meant(use)
    before = (f"{place.name}={values}" if values else place.name) if is_given else ""
    if doubt := _doubt_file(place, setting, use):
        return Blocked(Reason.FLAG_NOT_EDITABLE, doubt)
    index, engine = place.workload.container_index, place.workload.engine
    if off is None or (use is None and place.is_filed_off(off)):
        if not before:
            return Turned()
        edits = remove_option(place.container, index, place.known_as, engine, place.line)
        return explain_manifest_error(edits) if isinstance(edits, ManifestError) else Turned(edits, before)
    text = off
    if place.option.kind in _SWITCHES:
        text = "false" if place.name.startswith("--no-") else "true"
    desired = option_setting_of(place.known_as, text, engine)
    if isinstance(desired, ManifestError):
        return explain_manifest_error(desired)
    change = edit(place.container, index, desired, engine, place.workload.in_file, place.line)
    if isinstance(change, ManifestError):
        return explain_manifest_error(change)
    if isinstance(change, AlreadySet):
        return Turned()
    return Turned((change,), before, f"{place.name}={off}" if off else place.name)


def _doubt_file(place: _Place, setting: BundleSetting, use: Given | None) -> str:
    """Return why the configuration file stands in the way, with what to do; empty where it does not.

    Whatever the command line gives beats the file, so a file matters only to what the command line does not
    give afterwards.
    """
    if place.line.config is None or (setting.off is not None and use is not None):
        return ""
    file = place.workload.file
    if not isinstance(file, Configuration):
        return f"{place.name} may be in the file {place.line.config}, which is not edited: see that it is not"
    given = place.find_use_in_file()
    if given is None or not place.is_meant(given) or place.is_filed_off(setting.off):
        return ""
    return f"{place.name} stands in {file.read.where}, which is not edited for a method: take it out there"


def _text_of(use: Given) -> str:
    return " ".join(value.text for value in use.values)
