"""Commands that ask no cluster, and the operator itself."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from kvmedic.cli.app import Commands, Form
from kvmedic.cli.options import AsText, EngineVersion, Yes, run_in


@run_in("kvmedic.cli.canary.judge:judge_canary")
def judge(
    old: Annotated[
        list[str],
        typer.Option(
            metavar="[REPLICA=]FILE,FILE[,...]",
            help="Saved /metrics pages of a replica without the change, oldest first; once per replica.",
        ),
    ],
    new: Annotated[
        list[str],
        typer.Option(
            metavar="[REPLICA=]FILE,FILE[,...]",
            help="Pages of a replica with the change, saved at the same moments.",
        ),
    ],
    objective: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=DURATION", help="ttftP95=5s, interTokenP95=200ms or e2eP95=1m."),
    ] = None,
    interval: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="Time between two pages, such as 5m; default: the engines' busy time."
        ),
    ] = "",
    routing: Annotated[
        Literal["even", "load-aware", "sticky"] | None,
        typer.Option(help="How requests find a replica. By default inferred from arrivals and load."),
    ] = None,
    output: AsText = Form.TEXT,
) -> None:
    """Judge a canary: do new replicas serve as much in time as old ones beside them?

    Save the pages of all replicas at the same moments, the first one a few minutes after the new replicas
    became Ready: curl -s http://POD:8000/metrics >new-0.txt. Three moments or more judge better than two.

    Exit code 0: go on; 1: roll back; 2: wrong usage or an unusable file; 3: keep watching, with the reason.

    Example: kvmedic judge --old old-0.txt,old-1.txt,old-2.txt --new new-0.txt,new-1.txt,new-2.txt
    """


@run_in("kvmedic.cli.offline:print_freed_blocks")
def count_blocks(
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens of the sequence before the eviction.")],
    evict: Annotated[int, typer.Option("--evict", help="How many of these tokens are evicted.")],
    pattern: Annotated[
        str,
        typer.Option(
            "--pattern",
            help="Where the kept tokens are: scattered (the same for all heads), per-head (each keeps its "
            "own), runs:8 (in runs of 8 tokens), compact (moved together).",
        ),
    ] = "scattered",
    block_size: Annotated[int, typer.Option("--block-size", help="Tokens of one block.")] = 16,
    heads: Annotated[
        int, typer.Option("--kv-heads", help="KV heads that share a block; only per-head needs it.")
    ] = 8,
    layers: Annotated[
        int,
        typer.Option("--layers", help="Layers that share a block table and each keep their own tokens."),
    ] = 1,
    output: AsText = Form.TEXT,
) -> None:
    """Compute how many cache blocks an eviction of tokens frees. Only whole free blocks can be used again.

    Exit code 0: it was printed; 2: wrong usage.

    Example: kvmedic blocks --tokens 4096 --evict 2048 --pattern runs:8
    """


flags_app = typer.Typer(cls=Commands, no_args_is_help=True, rich_markup_mode=None)
"""Show and change engine flags in manifest files."""

File = Annotated[
    str, typer.Option("--file", "-f", help="Manifest file, YAML or JSON; `-` reads standard input.")
]
Container = Annotated[str | None, typer.Option(help="Name of the container, if several run an engine.")]
ObjectName = Annotated[str | None, typer.Option(help="Name of the object, if the file holds several.")]
EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="What the container runs, where neither image nor command line says so: vLLM.",
    ),
]


@flags_app.command("show")
@run_in("kvmedic.cli.offline:show_flags")
def show(
    file: File,
    output: AsText = Form.TEXT,
    container: Container = None,
    name: ObjectName = None,
    engine_name: EngineName = None,
    engine_version: EngineVersion = None,
) -> None:
    """Show the flags that a manifest gives its engines, as they read them, without their defaults.

    What cannot be read is named on standard error, and does not keep the rest from being shown.

    Exit code 0: they were printed; 2: wrong usage or an unusable file; 3: no flag can be read, with the
    reason.

    Example: kvmedic flags show -f chat.yaml
    """


@flags_app.command("set")
@run_in("kvmedic.cli.offline:set_flag")
def set_flag(
    setting: Annotated[str, typer.Argument(metavar="NAME=VALUE", help="For example max_num_seqs=64.")],
    file: File,
    container: Container = None,
    name: ObjectName = None,
    engine_name: EngineName = None,
    engine_version: EngineVersion = None,
) -> None:
    """Change one flag in a manifest and print the manifest.

    One token changes, or one is added. Every other byte stays.

    Exit code 0: the manifest was printed; 2: wrong usage or an unusable file; 3: refused, with the reason.

    Example: kvmedic flags set max_num_seqs=64 -f chat.yaml >changed.yaml
    """


@run_in("kvmedic.cli.live.probe:command")
def probe(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="An engine that serves nobody: http://HOST:PORT.")
    ],
    tokens: Annotated[
        int,
        typer.Option("--tokens", min=1, help="Tokens to generate; a verdict takes 16384, or 4 times --keep."),
    ],
    keep: Annotated[
        str,
        typer.Option(
            "--keep", metavar="TOKENS|SHARE", help="What the method keeps of a sequence: 2048, or 25%."
        ),
    ] = "",
    api_key_file: Annotated[
        str, typer.Option("--api-key-file", metavar="FILE", help="Holds the key that the engine asks for.")
    ] = "",
    output: AsText = Form.TEXT,
) -> None:
    """Generate one long answer and see whether blocks of evicted tokens come back. No cluster is needed.

    It is the operator's own trial, on an engine that you start: with the method on, alone, and with no other
    client. Used blocks are read each second. Without --keep they are printed, and nothing is judged.

    Exit code 0: they come back, or nothing was to be judged; 1: fewer come back than where kept tokens are
    moved together; 2: wrong usage, or the engine cannot be asked; 3: nothing was shown, with the reason.

    Example: kvmedic probe http://10.0.0.7:8000 --tokens 16384 --keep 2048
    """


@run_in("kvmedic.cli.versions:print_crds")
def crd(
    which: Annotated[
        Literal["all", "kvremediations", "kvapprovals"],
        typer.Argument(help="The kind; all: both, one after the other."),
    ] = "all",
    output: Annotated[
        Literal["yaml", "markdown"],
        typer.Option(
            "--output", "-o", help="yaml: the manifest, for kubectl apply. markdown: the reference page."
        ),
    ] = "yaml",
) -> None:
    """Print the CustomResourceDefinitions of this version.

    Exit code 0: they were printed; 2: wrong usage.

    Example: kvmedic crd | kubectl apply -f -
    """


@run_in("kvmedic.cli.versions:print_completion")
def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish", "kubectl"],
        typer.Argument(help="Whose script; kubectl: the program that completes `kubectl kvmedic`."),
    ],
) -> None:
    """Print the script by which a shell completes commands and options of kvmedic.

    That of kubectl is a program by the name kubectl_complete-kvmedic on the PATH (kubectl 1.26 and newer).

    Exit code 0: it was printed; 2: wrong usage.

    Example: source <(kvmedic completion bash)
    """


@run_in("kvmedic.cli.versions:print_version")
def show_version(output: AsText = Form.TEXT) -> None:
    """Print the version of this command, of the API that it speaks, and of the Python that runs it.

    Exit code 0: it was printed; 2: wrong usage.

    Example: kvmedic version -o json
    """


@run_in("kvmedic.cli.run:command")
def run_operator(yes: Yes = False) -> None:
    """Run the operator until SIGTERM. The chart does that in a pod; nobody needs to type it.

    The file named by KVMEDIC_CONFIG and KVMEDIC_… variables configure it. It acts only while it holds its
    Lease. Outside a pod it takes the kubeconfig's current context, and only with --yes.

    Exit code 0: it was ended; 2: wrong configuration, or no pod and no --yes.

    Example: kvmedic run
    """
