"""The stage ``doctor``: what `lit-gelu doctor` finds; what it calls broken is a failure."""

from dataclasses import asdict

from _gpu_record import Record, Settings

from lit_gelu.cli.doctor.facts import gather
from lit_gelu.cli.doctor.findings import examine


def run(record: Record, settings: Settings) -> None:
    """Write facts and findings."""
    facts = gather()
    findings = examine(facts)
    record.figure("facts", lambda: asdict(facts))
    record.figure("findings", lambda: [asdict(finding) for finding in findings])
    for finding in findings:
        if finding.level == "broken":
            record.fail(finding.check, f"{finding.text} {finding.remedy}".strip())
    if settings.device == "cpu":
        record.leave_out("CUDA", "the stage was called for the CPU")
