"""The verb `completion`: prints the script with which a shell completes the command."""

import click

from penstock_tools.cli.completion import script
from penstock_tools.cli.output import out_block
from penstock_tools.cli.root import cli, examples


@click.command(
    "completion", epilog=examples("penstock completion bash", "penstock completion fish")
)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def command(shell: str) -> None:
    """Print the script with which SHELL completes verbs, options, files, and names in stores.

    \b
    bash:  penstock completion bash > ~/.local/share/bash-completion/completions/penstock
    zsh:   penstock completion zsh > DIR/_penstock (DIR: a folder in $fpath)
    fish:  penstock completion fish > ~/.config/fish/completions/penstock.fish

    For the running shell only: eval "$(penstock completion bash)".
    """  # noqa: D301 - click's mark of lines that are kept
    out_block(script(cli, shell))
