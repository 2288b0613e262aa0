"""Files that follow from others: run as `python -m chart.generated` (write) or with `--check` (compare).

`charts/kvmedic/files/permissions.yaml` gives `deploy/rbac.yaml` and the table of `docs/reference/rbac.md`,
and `fence.yaml` beside it `deploy/fence.yaml`; `crds/` gives the chart's copy, because Helm cannot read
outside a chart. `chart.values_reference` gives the chart's README, `chart.dashboards` its dashboards,
`chart.metrics_reference` the page about metrics, `documentation.reference` those about commands and reasons,
`documentation.faults` the catalogue of faults, and `documentation.generated` what else follows from the code.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from chart.dashboards import dashboards
from chart.metrics_reference import PAGE as METRICS_PAGE
from chart.metrics_reference import metrics_page
from chart.values_reference import README, readme
from documentation.faults import PAGE as FAULTS_PAGE
from documentation.faults import fault_page
from documentation.generated import pages
from documentation.reference import reference_pages

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "kvmedic"
TABLE = CHART / "files" / "permissions.yaml"
FENCE = CHART / "files" / "fence.yaml"
DASHBOARDS = CHART / "files" / "dashboards"
KUSTOMIZE_FENCE = ROOT / "deploy" / "fence.yaml"
KUSTOMIZE_RBAC = ROOT / "deploy" / "rbac.yaml"
COMPONENTS = {
    "nodeHealth.nvidiaSmi": "nvidia-smi",
    "probe.trialPods": "trial-pods",
    "probe.evaluations": "evaluations",
    "rbac.ownerFields": "owner-fields",
    "rbac.configFiles": "config-files",
}
"""Folders of `deploy` by the chart's value that does the same."""
PAGE = ROOT / "docs" / "reference" / "rbac.md"
BEGIN, END = "<!-- generated from charts/kvmedic/files/permissions.yaml -->", "<!-- end -->"
NAMESPACE = "kvmedic-system"
HEAD = "# Generated from charts/kvmedic/files/permissions.yaml (make manifests). Do not edit.\n"
ROLE = """apiVersion: rbac.authorization.k8s.io/v1
kind: {kind}
metadata:
  name: {name}{place}
rules:
{rules}---
apiVersion: rbac.authorization.k8s.io/v1
kind: {kind}Binding
metadata:
  name: {name}{place}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {kind}
  name: {name}
subjects:
  - {{kind: ServiceAccount, name: kvmedic, namespace: {namespace}}}
"""
FENCE_HEAD = "# Generated from charts/kvmedic/files/fence.yaml (make manifests). Do not edit.\n"
POLICY = """apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kvmedic-fence
spec:
"""
BINDING = """apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kvmedic-fence
spec:
  policyName: kvmedic-fence
  validationActions: [Deny]
"""
COLUMNS = "| resource | verb | needed by | why |\n| --- | --- | --- | --- |\n"
SCOPES = {
    "watched": "in every watched namespace",
    "each": "in each of `watchNamespaces`, where some are named",
    "own": "in its own namespace",
}


@dataclass(frozen=True)
class Grant:
    """One verb with its reason."""

    verb: str
    needed_by: str
    why: str


@dataclass(frozen=True)
class Permission:
    """What may be done with one resource in one scope."""

    scope: str
    group: str
    resource: str
    names: tuple[str, ...]
    grants: tuple[Grant, ...]
    only: str = ""
    """Value of the chart that it needs, as section.name; empty: it is there by default."""

    def rule(self) -> str:
        """The RBAC rule as YAML, each verb's reason above it, as the chart writes it too."""
        lines = [f"# {grant.verb} ({grant.needed_by}): {grant.why}" for grant in self.grants]
        lines.append(f'- apiGroups: ["{self.group}"]')
        lines.append(f"  resources: [{self.resource}]")
        if self.names:
            lines.append(f"  resourceNames: [{', '.join(self.names)}]")
        lines.append(f"  verbs: [{', '.join(grant.verb for grant in self.grants)}]")
        return "".join(f"  {line}\n" for line in lines)

    def rows(self) -> Iterator[str]:
        """The same for a reader."""
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        named = f" `{'`, `'.join(self.names)}` only" if self.names else ""
        for grant in self.grants:
            yield f"| `{resource}`{named} | {grant.verb} | {grant.needed_by} | {grant.why} |\n"


def permissions(text: str | None = None) -> tuple[Permission, ...]:
    """The table, in its own order."""
    rows = yaml.safe_load(TABLE.read_text() if text is None else text)
    return tuple(
        Permission(
            row["scope"],
            row["group"],
            row["resource"],
            tuple(row.get("names", ())),
            tuple(Grant(grant["verb"], grant["neededBy"], grant["why"]) for grant in row["grants"]),
            row.get("only", ""),
        )
        for row in rows
    )


def kustomize_rbac() -> str:
    """deploy/rbac.yaml: a cluster-wide installation."""
    parts = []
    for scope, kind, name in (("watched", "ClusterRole", "kvmedic"), ("own", "Role", "kvmedic-own")):
        place = "" if kind == "ClusterRole" else f"\n  namespace: {NAMESPACE}"
        rules = "".join(row.rule() for row in permissions() if row.scope == scope and not row.only)
        parts.append(ROLE.format(kind=kind, name=name, place=place, rules=rules, namespace=NAMESPACE))
    return HEAD + "---\n".join(parts)


def kustomize_fence() -> str:
    """deploy/fence.yaml: the policy as the chart makes it by default."""
    kept = ["kube-system", "kube-public", "kube-node-lease", NAMESPACE]
    places = {
        "ACCOUNT": f"system:serviceaccount:{NAMESPACE}:kvmedic",
        "NAMESPACES": json.dumps(kept, separators=(",", ":")),
        "REVISIONS": "true",
    }
    spec = FENCE.read_text()
    for word, text in places.items():
        spec = spec.replace(word, text)
    lines = "".join(f"  {line}\n" if line else "\n" for line in spec.splitlines() if not line.startswith("#"))
    return f"{FENCE_HEAD}{POLICY}{lines}---\n{BINDING}"


def component_rbac(value: str) -> str:
    """What the component adds that stands for a value of the chart."""
    rules = "".join(row.rule() for row in permissions() if row.only == value)
    name = f"kvmedic-{COMPONENTS[value]}"
    return HEAD + ROLE.format(kind="ClusterRole", name=name, place="", rules=rules, namespace=NAMESPACE)


def page() -> str:
    """docs/reference/rbac.md with its tables anew."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    tables = ""
    for scope, where in SCOPES.items():
        tables += f"\n### {where[0].upper()}{where[1:]}\n\n{COLUMNS}"
        given = (row for row in permissions() if row.scope == scope and not row.only)
        tables += "".join(line for row in given for line in row.rows())
    for value in COMPONENTS:
        tables += f"\n### In every watched namespace, only with `{value}`\n\n{COLUMNS}"
        tables += "".join(line for row in permissions() if row.only == value for line in row.rows())
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


def generated_files() -> dict[Path, str]:
    """Every generated file with what it should hold."""
    copies = {
        CHART / "files" / "crds" / crd.name: crd.read_text()
        for crd in (ROOT / "crds").glob("kvmedic.io_*.yaml")
    }
    components = {
        ROOT / "deploy" / folder / "rbac.yaml": component_rbac(value) for value, folder in COMPONENTS.items()
    }
    own = {
        KUSTOMIZE_RBAC: kustomize_rbac(),
        KUSTOMIZE_FENCE: kustomize_fence(),
        PAGE: page(),
        README: readme(),
        METRICS_PAGE: metrics_page(),
        FAULTS_PAGE: fault_page(),
    }
    shown = {DASHBOARDS / name: text for name, text in dashboards().items()}
    return {**own, **components, **shown, **copies, **pages(), **reference_pages()}


def stale() -> list[Path]:
    """Generated files that differ from what they should hold, and copies without an original."""
    files = generated_files()
    differ = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    return differ + [path for path in (CHART / "files" / "crds").glob("*") if path not in files]


def main(arguments: list[str]) -> int:
    """Write the files, or name those that are stale."""
    found = stale()
    for path in found:
        print(f"{'stale' if arguments else 'writing'}: {path.relative_to(ROOT)}")
    if arguments == ["--check"]:
        return 1 if found else 0
    files = generated_files()
    for path in found:
        path.write_text(files[path]) if path in files else path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
