"""The stage ``doctor``: what `lit-gelu doctor` says; what it calls broken is a failure."""

from dataclasses import asdict

from _gpu_record import Record, Settings

from lit_gelu.cli.doctor import examine


def run(record: Record, settings: Settings) -> None:
    """Write the findings."""
    findings = list(examine())
    record.figure("findings", lambda: [asdict(finding) for finding in findings])
    for finding in findings:
        if finding.level == "broken":
            record.fail(finding.check, f"{finding.text} {finding.remedy}".strip())
    if settings.device == "cpu":
        record.leave_out("CUDA", "the stage was called for the CPU")
