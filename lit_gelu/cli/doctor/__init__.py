"""``lit-gelu doctor``: say what is wrong with this installation, and how to mend it."""

import json
import sys
from dataclasses import asdict

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console
from rich.text import Text

from lit_gelu.cli.doctor.checks import Finding, examine
from lit_gelu.cli.doctor.facts import Facts, gather
from lit_gelu.cli.terminal import command_parser

HELP = "say what is wrong with this installation, and how to mend it"
EXAMPLES = """\
exit code: 0 if nothing is broken, 1 if something is, 2 for a mistake in the arguments

examples:
  lit-gelu doctor
  lit-gelu doctor --json true          facts and findings as JSON, for a report of a fault
"""
_STYLES = {"ok": "green", "note": "yellow", "broken": "bold red"}


def build_parser() -> ArgumentParser:
    """Return the command's parser.

    Returns:
        The parser.
    """
    parser = command_parser("doctor", HELP, EXAMPLES)
    parser.add_argument("--json", type=bool, default=False, help="whether to print facts and findings as JSON")
    return parser


def run(arguments: Namespace) -> int:
    """Examine this installation.

    Args:
        arguments: What `build_parser` parsed.

    Returns:
        0 if nothing is broken, else 1.
    """
    facts = gather()
    findings = examine(facts)
    if arguments.json:
        sys.stdout.write(as_json(facts, findings) + "\n")
    else:
        _print(facts, findings)
    return 1 if any(finding.level == "broken" for finding in findings) else 0


def as_json(facts: Facts, findings: list[Finding]) -> str:
    """Return facts and findings as JSON.

    Args:
        facts: What was gathered.
        findings: What was found.

    Returns:
        The text.

    Example:
        >>> json.loads(as_json(Facts(), [Finding("ok", "torch", "2.15")]))["findings"][0]["level"]
        'ok'
    """
    content = {"facts": asdict(facts), "findings": [asdict(finding) for finding in findings]}
    return json.dumps(content, indent=2)


def _print(facts: Facts, findings: list[Finding]) -> None:
    """Print one line a finding, and its remedy below."""
    console = Console(highlight=False, soft_wrap=True)
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    console.print(Text(f"{facts.platform}; {versions}"))
    for finding in findings:
        line = Text.assemble((f"{finding.level:<7}", _STYLES[finding.level]), f"{finding.check}: {finding.text}")
        console.print(line)
        if finding.remedy:
            console.print(Text(f"       to mend it: {finding.remedy}"))
    broken = sum(finding.level == "broken" for finding in findings)
    console.print(Text(f"{broken} broken" if broken else "nothing is broken"))
