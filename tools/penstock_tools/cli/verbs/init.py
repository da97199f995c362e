"""The verb `init`: creates a store."""

import click

import penstock
from penstock_tools.cli.output import chosen, json_option, note, out_json, settings_options
from penstock_tools.cli.root import examples


@click.command(
    "init",
    epilog=examples(
        "penstock init fresh", "penstock init fresh2 --set geometry.segment_bytes=1048576"
    ),
)
@click.argument("path", type=click.Path())
@settings_options
@json_option
def command(
    path: str, settings: tuple[str, ...], config: str | None, broker_conf: str | None, as_json: bool
) -> int:
    """Create a store at PATH, or open the existing one; reports what recovery did."""
    with penstock.open(path, config, **chosen(settings, broker_conf)) as store:
        report = store.recovery
        assert report is not None
        if as_json:
            out_json(path=path, state=report.state, log_end=report.log_end, mended=report.mended)
        else:
            note(f"{path}: {report.state} store, log ends at {report.log_end}")
            for sentence in report.mended:
                note(f"  {sentence}")
    return 0
