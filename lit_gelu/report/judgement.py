"""All findings of a run, the gravest first."""

from collections.abc import Iterator
from dataclasses import replace

from lit_gelu.report.activation_findings import activation_findings
from lit_gelu.report.content import Level, ReportedRun, RunFinding
from lit_gelu.report.loss_findings import loss_findings

_ORDER: tuple[Level, ...] = ("alarm", "warning", "note", "good")


def judged(run: ReportedRun) -> ReportedRun:
    """Return a run with its findings."""
    found = [*_of_end(run), *activation_findings(run), *loss_findings(run), *_of_files(run)]
    return replace(run, findings=tuple(sorted(found, key=lambda finding: _ORDER.index(finding.level))))


def _of_end(run: ReportedRun) -> Iterator[RunFinding]:
    """Yield how the run ended, if not well."""
    if run.status == "failed":
        yield RunFinding("alarm", "failed run", "", f"The run ended with an error: {run.failure or 'not recorded'}")
    elif run.status == "interrupted":
        yield RunFinding("warning", "interrupted run", "", "The run was interrupted before its end.")


def _of_files(run: ReportedRun) -> Iterator[RunFinding]:
    """Yield what the proofs of exported files say."""
    for file in run.files:
        if file.proof == "unreadable":
            yield RunFinding("warning", "exported file", file.name, f"The file cannot be read: {file.trouble}")
        elif file.proof == "failed":
            text = "The file does not compute what the model computes: the comparison with PyTorch failed."
            yield RunFinding("alarm", "exported file", file.name, text, "Read the comparison before the file is used.")
        elif file.proof == "none":
            text = "Nothing says that this file computes what the model computes."
            advice = "lit-gelu parity FILE --ckpt CKPT, or OnnxExport(check=True), compares it with PyTorch."
            yield RunFinding("note", "exported file", file.name, text, advice)
        elif file.report_fits is False:
            text = "The comparison beside the file is not the one that the file itself names."
            yield RunFinding("warning", "exported file", file.name, text, "Compare again: one of the two was changed.")
        else:
            error = (
                "" if file.largest_error is None else f", largest error {file.largest_error:.2e} of the largest output"
            )
            text = f"Compared with PyTorch on {file.provider or 'an unnamed provider'} and passed{error}."
            figures = {} if file.largest_error is None else {"largest_error": file.largest_error}
            yield RunFinding("good", "exported file", file.name, text, figures=figures)
