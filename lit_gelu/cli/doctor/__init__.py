"""``lit-gelu doctor``: say what is wrong with this installation, and how to mend it."""

import json
from dataclasses import asdict

from jsonargparse import ArgumentParser, Namespace
from rich.text import Text

from lit_gelu.cli.doctor.facts import Facts, gather
from lit_gelu.cli.doctor.findings import Finding, examine
from lit_gelu.cli.options import add_json, command_parser
from lit_gelu.cli.terminal import console_for_output, write_text

EXAMPLES = """\
exit code: 0 if nothing is broken, 1 if something is, 2 for a mistake in the arguments

examples:
  lit-gelu doctor
  lit-gelu doctor --json                facts and findings as JSON, for a report of a fault
"""
_STYLES = {"ok": "green", "note": "yellow", "broken": "bold red"}


def build_parser() -> ArgumentParser:
    """Return the command's parser."""
    parser = command_parser("doctor", EXAMPLES)
    add_json(parser)
    return parser


def run(arguments: Namespace) -> int:
    """Examine this installation; return 0 if nothing is broken, else 1."""
    facts = gather()
    findings = examine(facts)
    if arguments.json is not None:
        content = {"facts": asdict(facts), "findings": [asdict(finding) for finding in findings]}
        write_text(json.dumps(content, indent=2), arguments.json)
    if arguments.json != "-":
        _print(facts, findings)
    return 1 if any(finding.level == "broken" for finding in findings) else 0


def _print(facts: Facts, findings: list[Finding]) -> None:
    """Print one line a finding, and its remedy below."""
    console = console_for_output(highlight=False, soft_wrap=True)
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    console.print(Text(f"{facts.platform}; {versions}"))
    for finding in findings:
        line = Text.assemble((f"{finding.level:<7}", _STYLES[finding.level]), f"{finding.check}: {finding.text}")
        console.print(line)
        if finding.remedy:
            console.print(Text(f"       to mend it: {finding.remedy}"))
    broken = sum(finding.level == "broken" for finding in findings)
    console.print(Text(f"{broken} broken" if broken else "nothing is broken"))
