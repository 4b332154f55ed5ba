"""What decides."""

import pytest

from lit_gelu.export import ExportOptionError
from lit_gelu.export.parity.task_metrics import TaskMetric
from lit_gelu.export.quantization.acceptance import criteria
from lit_gelu.export.quantization.int8_metadata import QuantizationRecord
from lit_gelu.export.quantization.report import OutputNoise, QuantizationReport

LOGITS = OutputNoise("output", 100, 35.0, 0.1, 10.0, 0, 0.97, 3)
IMAGE = OutputNoise("image", 100, 18.0, 0.1, 10.0, 0, None, None)


def test_the_error_rate_decides_and_an_improvement_passes():
    metrics = [TaskMetric("test_loss", 1.0, 2.0), TaskMetric("test_error", 0.10, 0.08)]
    (one,) = criteria(metrics, [LOGITS], None, 0.01, None, None)
    assert (one.name, one.passed) == ("test_error, increase", True)
    (one,) = criteria([TaskMetric("test_error", 0.10, 0.111)], [LOGITS], None, 0.01, None, None)
    assert not one.passed


def test_an_accuracy_may_not_fall():
    metrics = [TaskMetric("test_acc", 0.90, 0.88)]
    assert not criteria(metrics, [LOGITS], "test_acc", 0.01, None, None)[0].passed
    assert criteria(metrics, [LOGITS], "test_acc", 0.03, None, None)[0].passed
    assert criteria([TaskMetric("test_acc", 0.9, 0.95)], [LOGITS], "test_acc", 0.0, None, None)[0].passed


def test_a_loss_is_judged_in_its_own_units():
    (one,) = criteria([TaskMetric("test_loss", 0.004, 0.0041)], [IMAGE], None, 0.01, None, None)
    assert one.value == pytest.approx(0.025)
    assert not one.passed


def test_a_negative_loss_that_grows_is_worse():
    """Such as a density's negative logarithm: from -2 to -1 is half a unit of PyTorch's, for the worse."""
    (one,) = criteria([TaskMetric("test_loss", -2.0, -1.0)], [IMAGE], None, 0.01, None, None)
    assert one.value == pytest.approx(0.5)
    assert not one.passed
    (one,) = criteria([TaskMetric("test_loss", -2.0, -2.5)], [IMAGE], None, 0.01, None, None)
    assert one.passed


def test_without_metrics_the_outputs_decide():
    one, other = criteria([], [LOGITS, IMAGE], None, 0.01, None, None)
    assert (one.value, one.passed) == (pytest.approx(0.03), False)
    assert (other.name, other.value, other.passed) == ("SQNR of image, dB", 18.0, False)
    assert [c.limit for c in criteria([], [LOGITS, IMAGE], None, 0.01, None, 15.0)] == [0.01, 15.0, 15.0]
    assert len(criteria([TaskMetric("test_error", 0.1, 0.1)], [LOGITS, IMAGE], None, 0.01, None, None)) == 1
    (one,) = criteria([], [IMAGE], None, 0.01, None, None)
    assert (one.value, one.limit, one.passed) == (18.0, 20.0, False)
    assert criteria([], [IMAGE], None, 0.01, None, 15.0)[0].passed


def test_whole_numbers_are_judged_by_the_share_that_differs():
    classes = OutputNoise("class", 100, 12.0, 3.0, 9.0, 0, None, None, changed_share=0.008)
    _, one = criteria([], [LOGITS, classes], None, 0.01, None, None)
    assert (one.name, one.value, one.passed) == ("entries of class that differ", 0.008, True)
    assert not criteria([], [classes], None, 0.005, None, None)[0].passed


def test_more_limits_decide_too():
    metrics = [TaskMetric("test_error", 0.1, 0.1)]
    found = criteria(metrics, [LOGITS], None, 0.01, 0.99, 30.0)
    assert [(one.name, one.passed) for one in found] == [
        ("test_error, increase", True),
        ("top-1 agreement", False),
        ("SQNR of output, dB", True),
    ]
    with pytest.raises(ExportOptionError, match=r"no test metric 'test_f1'.* There are: test_error"):
        criteria(metrics, [LOGITS], "test_f1", 0.01, None, None)
    with pytest.raises(ExportOptionError, match="min_top1= needs an output of logits"):
        criteria(metrics, [IMAGE], None, 0.01, 0.99, None)


def test_nan_never_passes():
    nan = OutputNoise("y", 1, float("nan"), 0.0, 0.0, 0, None, None)
    assert not criteria([], [nan], None, 0.01, None, None)[0].passed
    assert not criteria([TaskMetric("test_loss", 0.0, 1.0)], [], None, 0.01, None, None)[0].passed
    assert not criteria([TaskMetric("test_loss", 0.0, 0.0)], [], None, 0.01, None, None)[0].value > 0


def test_the_report_names_each_fault_among_its_findings():
    record = QuantizationRecord("portable", "minmax", 8, 0, "uint8", True, False, ("head",), (), 0.0, 100, "1.0")
    report = QuantizationReport("net.onnx", "CPU", record, (LOGITS,), (), faults=("labels differ.",))
    assert not report.passed
    assert "- Fault: labels differ." in report.to_markdown()
    assert "Fault: labels differ." in str(report)
