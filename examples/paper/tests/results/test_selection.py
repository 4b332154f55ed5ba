"""Which evaluation and which learning rate count: every expected number below is computed by hand."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from paper_records import classifier_records, run_record

from gelu_paper.errors import PaperArgumentError, RecordsError
from gelu_paper.protocol.experiments import AUTOENCODER, CIFAR10, MNIST, MNIST_ZERO_IDENTITY
from gelu_paper.records.run_record import Curve, Robustness
from gelu_paper.results.medians import Summary, median_curve, median_robustness
from gelu_paper.results.selection import Outcome, candidates_of, choices, outcome, select


class TestSummary:
    def test_odd_even_and_single(self):
        assert Summary((0.3, 0.1, 0.2)).median == 0.2
        assert Summary((4.0, 1.0, 2.0, 8.0)).median == 3.0
        assert Summary((0.5,)).standard_deviation is None

    def test_the_deviation_is_the_samples(self):
        values = (0.126, 0.131, 0.125, 0.129, 0.140)
        assert Summary(values).standard_deviation == pytest.approx(np.std(values, ddof=1), rel=1e-12)

    def test_what_diverged_is_worst_and_stays_in(self):
        summary = Summary((0.1, math.inf, 0.3))
        assert (summary.median, summary.low, summary.high, summary.diverged) == (0.3, 0.1, math.inf, 1)
        assert summary.standard_deviation is None
        assert Summary((0.1, math.nan)).median == math.inf
        assert Summary((math.nan, 0.1, 0.2)).median == 0.2

    def test_nothing_has_no_median(self):
        with pytest.raises(PaperArgumentError, match="at least one"):
            Summary(())


CURVES = {"val_error": [0.30, 0.12, 0.15, 0.12], "test_error": [0.31, 0.16, 0.11, 0.10]}


class TestOutcome:
    def test_test_error_is_taken_at_the_first_lowest_validation_error(self):
        # The test error itself is lower at the third and the fourth evaluation: it must not be looked at.
        assert outcome(run_record(curves=CURVES)) == Outcome(0.12, 0.16)

    def test_the_last_epoch_counts_where_the_experiment_says_so(self):
        assert outcome(run_record(curves=CURVES), "last") == Outcome(0.12, 0.10)
        losses = {"train_loss": [0.03, 0.02], "test_loss": [0.011, 0.0075]}
        assert outcome(run_record(curves=losses), "last", "test_loss") == Outcome(None, 0.0075)

    def test_validation_and_test_are_matched_by_epoch_and_not_by_place(self):
        record = run_record()
        curves = {"val_error": Curve((1.0, 2.0, 3.0), (0.3, 0.2, 0.1)), "test_error": Curve((2.0, 3.0), (0.25, 0.15))}
        assert outcome(replace(record, curves=curves)) == Outcome(0.1, 0.15)
        curves["test_error"] = Curve((1.0, 2.0), (0.35, 0.25))
        with pytest.raises(RecordsError, match="no test_error at epoch 3"):
            outcome(replace(record, curves=curves))

    def test_an_evaluation_that_was_no_number_is_not_the_lowest(self):
        curves = {"val_error": [math.nan, 0.2], "test_error": [0.0, 0.22]}
        assert outcome(run_record(curves=curves)) == Outcome(0.2, 0.22)

    @pytest.mark.parametrize("rule", ["best_validation", "last"])
    def test_a_diverged_run_counts_as_infinite_however_good_it_had_been(self, rule):
        record = run_record(curves=CURVES, status="diverged")
        assert outcome(record, rule) == Outcome(math.inf, math.inf)

    def test_a_diverged_run_without_validation_set(self):
        record = run_record(curves={"train_loss": [0.1]}, status="diverged")
        assert outcome(record, "last", "test_loss") == Outcome(None, math.inf)

    def test_a_run_without_the_curves_it_is_judged_by(self):
        with pytest.raises(RecordsError, match="no validation error"):
            outcome(run_record(curves={"test_error": [0.1]}))
        with pytest.raises(RecordsError, match="no test_loss, which its experiment reports"):
            outcome(run_record(curves=CURVES), "last", "test_loss")

    def test_a_search_need_not_measure_the_test_set(self):
        assert outcome(run_record(curves={"val_error": [0.2, 0.1]})) == Outcome(0.1, None)

    def test_what_was_not_measured_in_every_run_has_no_median(self):
        """A diverged run counts as infinite in each number: it must not be the only one that makes up a median."""
        searched = [run_record(curves={"val_error": [0.2]}), run_record(seed=1, status="diverged")]
        (candidate,) = candidates_of(searched)
        assert candidate.validation.values == (0.2, math.inf)
        assert candidate.test is None


class TestSelect:
    def test_learning_rate_with_the_lowest_median_validation_error(self):
        # Medians of validation errors: 1e-3 .20, 1e-4 .18, 1e-5 .30. The mean would choose 1e-3 (.20 against .2133),
        # the single best run 1e-5, the test errors 1e-3.
        errors = {
            1e-3: [(0.19, 0.10), (0.21, 0.11), (0.20, 0.12)],
            1e-4: [(0.18, 0.25), (0.17, 0.21), (0.29, 0.23)],
            1e-5: [(0.10, 0.30), (0.30, 0.30), (0.30, 0.30)],
        }
        choice = select(candidates_of(classifier_records(errors)))
        assert choice.chosen.learning_rate == 1e-4
        assert choice.chosen.validation.median == 0.18
        assert choice.chosen.test.median == 0.23
        assert (choice.chosen.test.low, choice.chosen.test.high) == (0.21, 0.25)
        assert choice.remarks == ()
        assert [candidate.learning_rate for candidate in choice.candidates] == [1e-3, 1e-4, 1e-5]

    def test_the_order_of_the_records_changes_nothing(self):
        records = classifier_records({1e-3: [(0.2, 0.1), (0.3, 0.2)], 1e-4: [(0.1, 0.4), (0.2, 0.5)]})
        assert select(candidates_of(records[::-1])) == select(candidates_of(records))

    def test_a_tie_goes_to_the_larger_learning_rate_and_is_said(self):
        choice = select(candidates_of(classifier_records({1e-4: [(0.2, 0.1)], 1e-3: [(0.2, 0.3)]})))
        assert choice.chosen.learning_rate == 1e-3
        assert choice.remarks == (
            "learning rate 0.001 and learning rate 0.0001 tie on the validation error: the first is taken",
        )

    def test_candidates_come_with_the_largest_learning_rate_first_and_then_the_largest_setting(self):
        settings = [{"keep": 0.5}, {"keep": 1.0}, {"keep": 0.75}]
        curves = {"val_error": [0.2], "test_error": [0.3]}
        records = [
            run_record(learning_rate=rate, setting=setting, curves=curves)
            for rate in (1e-4, 1e-3)
            for setting in settings
        ]
        order = [(one.learning_rate, one.setting["keep"]) for one in candidates_of(records)]
        assert order == [(rate, keep) for rate in (1e-3, 1e-4) for keep in (1.0, 0.75, 0.5)]

    def test_a_tie_is_said_before_other_remarks(self):
        choice = select(candidates_of(classifier_records({1e-4: [(0.2, 0.1)], 1e-3: [(0.2, 0.3)]})), seeds=(0, 1))
        assert ["tie on" in remark for remark in choice.remarks] == [True, False, False]

    def test_missing_seeds_are_said_and_the_rest_takes_part(self):
        records = classifier_records({1e-3: [(0.3, 0.3), (0.2, 0.2), (0.4, 0.4)], 1e-4: [(0.25, 0.1)]})
        choice = select(candidates_of(records))
        assert choice.chosen.learning_rate == 1e-4
        assert choice.remarks == ("learning rate 0.0001: 1 of 3 seeds",)
        assert select(candidates_of(records[3:]), seeds=range(5)).remarks == ("learning rate 0.0001: 1 of 5 seeds",)

    def test_diverged_runs_count_against_their_learning_rate(self):
        records = classifier_records({1e-3: [(0.1, 0.1), (0.1, 0.1), (0.1, 0.1)], 1e-4: [(0.2, 0.2)] * 3})
        one = [replace(record, status="diverged") if record.seed < 1 else record for record in records[:3]]
        choice = select(candidates_of([*one, *records[3:]]))
        assert (choice.chosen.learning_rate, choice.chosen.test.median) == (1e-3, 0.1)
        assert choice.remarks == ("learning rate 0.001: 1 of 3 runs diverged",)
        two = [replace(record, status="diverged") if record.seed < 2 else record for record in records[:3]]
        assert select(candidates_of([*two, *records[3:]])).chosen.learning_rate == 1e-4

    def test_one_candidate_needs_no_validation_error_and_two_do(self):
        losses = [run_record(curves={"test_loss": [0.1]}, learning_rate=rate) for rate in (1e-3, 1e-4)]
        assert select(candidates_of(losses[:1], "last", "test_loss")).chosen.test.median == 0.1
        with pytest.raises(RecordsError, match="no validation error to be selected by"):
            select(candidates_of(losses, "last", "test_loss"))
        with pytest.raises(PaperArgumentError, match="No runs"):
            select([])


class TestChoices:
    def test_one_for_each_setting_in_the_experiments_order(self):
        records = classifier_records({1e-3: [(0.2, 0.21)]}, setting={"keep": 0.5})
        records += classifier_records({1e-3: [(0.1, 0.11)], 1e-4: [(0.05, 0.12)]}, setting={"keep": 1.0})
        records += classifier_records({1e-3: [(0.0, 0.0)]}, setting={"keep": 1.0}, arm="relu")
        chosen = [choice.chosen for choice in choices(MNIST, "gelu", records)]
        assert [(one.setting["keep"], one.learning_rate, one.test.median) for one in chosen] == [
            (1.0, 1e-4, 0.12),
            (0.5, 1e-3, 0.21),
        ]

    def test_dropout_is_tuned_together_with_the_learning_rate_where_the_experiment_says_so(self):
        records = classifier_records(
            {1e-3: [(0.2, 0.21)], 1e-4: [(0.3, 0.1)]},
            experiment="mnist_zero_identity",
            arm="relu",
            setting={"keep": 0.5},
        )
        records += classifier_records(
            {1e-3: [(0.19, 0.3)]}, experiment="mnist_zero_identity", arm="relu", setting={"keep": 0.75}
        )
        (choice,) = choices(MNIST_ZERO_IDENTITY, "relu", records)
        assert (choice.chosen.setting, choice.chosen.learning_rate, choice.chosen.test.median) == (
            {"keep": 0.75},
            1e-3,
            0.3,
        )
        assert len(choice.candidates) == 3

    def test_the_autoencoder_shows_both_learning_rates(self):
        records = [
            run_record("autoencoder", learning_rate=rate, curves={"test_loss": [0.02, loss]})
            for rate, loss in ((1e-4, 0.0110), (1e-3, 0.0075))
        ]
        got = [
            (choice.chosen.learning_rate, choice.chosen.test.median) for choice in choices(AUTOENCODER, "gelu", records)
        ]
        assert got == [(1e-3, 0.0075), (1e-4, 0.0110)]

    def test_cifar_counts_by_its_last_epoch(self):
        records = [
            run_record("cifar10", seed=seed, curves={"test_error": [low, end]})
            for seed, (low, end) in enumerate([(0.070, 0.079), (0.060, 0.081), (0.075, 0.078)])
        ]
        (choice,) = choices(CIFAR10, "gelu", records)
        assert choice.chosen.test.median == 0.079

    def test_seeds_and_learning_rates_of_the_experiment_that_were_not_run_are_said(self):
        records = classifier_records({1e-3: [(0.1, 0.1)] * 2}, setting={"keep": 1.0})
        (choice,) = choices(MNIST, "gelu", records)
        assert choice.remarks == (
            "learning rate 0.001, keep 1: 2 of 5 seeds",
            "keep 1: not run at learning rate 0.0001, 1e-05",
        )

    def test_settings_that_are_chosen_and_were_not_run_are_said(self):
        experiment = MNIST_ZERO_IDENTITY

        def runs(pairs):
            return [
                record
                for rate, keep in pairs
                for record in classifier_records(
                    {rate: [(0.1, 0.1)] * 5}, experiment=experiment.name, arm="relu", setting={"keep": keep}
                )
            ]

        grid = list(itertools.product((1e-3, 1e-4, 1e-5), (1.0, 0.75, 0.5)))
        (whole,) = choices(experiment, "relu", runs(grid))
        assert not [remark for remark in whole.remarks if "not run" in remark]
        (diagonal,) = choices(experiment, "relu", runs([grid[0], grid[4], grid[8]]))
        assert diagonal.remarks[-1] == (
            "not run at learning rate 0.001, keep 0.75; 0.001, keep 0.5; 0.0001, keep 1; 0.0001, keep 0.5; "
            "1e-05, keep 1; 1e-05, keep 0.75"
        )
        # The arm of the 0-I map has one setting, so that nothing of it is missing.
        (single,) = choices(
            experiment,
            "zero_identity",
            [replace(record, arm="zero_identity") for record in runs([pair for pair in grid if pair[1] == 1.0])],
        )
        assert not [remark for remark in single.remarks if "not run" in remark]

    def test_an_arm_without_runs(self):
        assert choices(MNIST, "gelu", []) == []


class TestMedianCurve:
    def test_epoch_by_epoch(self):
        records = [
            run_record(seed=seed, curves={"val_loss": values})
            for seed, values in enumerate([[3.0, 1.0], [1.0, 5.0], [2.0, 3.0]])
        ]
        curve = median_curve(records, "val_loss")
        assert (curve.epoch, curve.median, curve.low, curve.high) == ((1.0, 2.0), (2.0, 3.0), (1.0, 1.0), (3.0, 5.0))

    def test_a_diverged_run_stays_in_as_the_worst(self):
        records = [
            run_record(seed=0, curves={"val_loss": [3.0, 1.0, 0.5]}),
            run_record(seed=1, curves={"val_loss": [1.0, math.nan]}, status="diverged"),
            run_record(seed=2, curves={"val_loss": [2.0, 3.0, 0.1]}),
        ]
        assert median_curve(records, "val_loss").median == (2.0, 3.0, 0.5)
        assert median_curve(records[:2], "val_loss").median == (2.0, math.inf, math.inf)

    def test_nobody_measured_it(self):
        assert median_curve([run_record()], "val_loss") is None
        assert median_curve([], "val_loss") is None

    def test_runs_of_other_epochs_are_refused(self):
        long, short = (run_record(seed=n, curves={"val_loss": [1.0] * n}) for n in (3, 2))
        with pytest.raises(RecordsError, match=r"seed=2.*2 measurements, not 3"):
            median_curve([long, short], "val_loss")
        shifted = replace(long, key="shifted", curves={"val_loss": Curve((0.5, 1.5, 2.5), (1.0, 1.0, 1.0))})
        with pytest.raises(RecordsError, match="other epochs"):
            median_curve([long, shifted], "val_loss")
        with pytest.raises(RecordsError, match="0 measurements, not 3"):
            median_curve([long, run_record(seed=9)], "val_loss")

    def test_robustness(self):
        levels = (0.0, 1.0)
        records = [
            run_record(seed=seed, robustness=Robustness(levels, (0.02, error), (0.1, loss)))
            for seed, (error, loss) in enumerate([(0.34, 3.0), (0.36, 2.9), (0.33, 3.2)])
        ]
        assert median_robustness(records, "error").median == (0.02, 0.34)
        assert median_robustness(records, "loss").median == (0.1, 3.0)
        assert median_robustness(records, "loss").epoch == levels
        assert median_robustness([*records, run_record(seed=4, status="diverged")], "error").median[1] == pytest.approx(
            0.35
        )
        with pytest.raises(RecordsError, match="levels of noise"):
            median_robustness([*records, run_record(seed=4)], "error")
        with pytest.raises(RecordsError, match="levels of noise"):
            median_robustness([*records, run_record(seed=4, robustness=Robustness((0.0,), (0.1,), (0.1,)))], "error")
        assert median_robustness([run_record()], "error") is None
