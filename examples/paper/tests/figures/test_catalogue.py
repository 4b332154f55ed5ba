"""What is drawn: the axes are read back and compared with medians computed by hand."""

import math
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from paper_records import curve, run_record

from lit_gelu.files import UnwritablePathError
from gelu_paper.errors import PaperArgumentError, RecordsError
from gelu_paper.figures.catalogue import FIGURES, draw, numbers_of
from gelu_paper.figures.drawing import PAPER_ARMS, FigureOptions, colour, light, write
from gelu_paper.records.run_record import Robustness
from gelu_paper.results.labels import QUICK

MNIST = {"train_loss": [0.3, 0.2, 0.1], "val_loss": [0.31, 0.22, 0.15], "val_error": [0.1] * 3, "test_error": [0.1] * 3}
LEVELS = (0.0, 1.0, 3.0)


def shifted(curves, amount):
    return {name: [value + amount for value in values] for name, values in curves.items()}


def runs(experiment, curves, arms=PAPER_ARMS, seeds=3, **named):
    """Return runs whose curves lie .1 apart from arm to arm and .01 from seed to seed: the middle one is the median."""
    return [
        run_record(
            experiment, arm, seed, curves=shifted(curves, 0.1 * place + 0.01 * ((seed + 1) % seeds - 1)), **named
        )
        for place, arm in enumerate(arms)
        for seed in range(seeds)
    ]


def mnist(keeps=(1.0, 0.5), **named):
    return [record for keep in keeps for record in runs("mnist", MNIST, setting={"keep": keep}, **named)]


def lines_of(axes):
    """Return the lines of a panel that have a label of their own."""
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def texts_of(figure):
    return [text.get_text() for text in figure.texts]


def legend_of(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


class TestFunctions:
    def test_the_three_functions_over_the_papers_interval(self):
        (axes,) = draw(1, []).figure.axes
        lines = {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}
        assert len(lines) == 3
        x = lines["ReLU"].get_xdata()
        assert (x[0], x[-1]) == (-4.0, 3.0)
        np.testing.assert_allclose(lines["ReLU"].get_ydata(), np.maximum(x, 0), atol=1e-15)
        elu = np.where(x > 0, x, np.expm1(x))
        np.testing.assert_allclose(lines["ELU ($\\alpha = 1$)"].get_ydata(), elu, atol=1e-14)
        gelu = [value * 0.5 * math.erfc(-value / math.sqrt(2)) for value in x]
        np.testing.assert_allclose(lines["GELU ($\\mu = 0$, $\\sigma = 1$)"].get_ydata(), gelu, atol=1e-14)

    def test_it_needs_no_runs(self):
        drawing = draw(1, [])
        assert drawing.missing == ()
        assert QUICK not in texts_of(drawing.figure)


class TestCurves:
    def test_medians_dark_and_light_in_both_panels(self):
        drawing = draw(2, mnist())
        assert drawing.missing == ()
        left, right = drawing.figure.axes
        assert [left.get_title(), right.get_title()] == ["no dropout", "dropout, keep 0.5"]
        for axes in (left, right):
            lines = lines_of(axes)
            assert set(lines) == {f"{arm} {name}" for arm in PAPER_ARMS for name in ("train_loss", "val_loss")}
            for place, arm in enumerate(PAPER_ARMS):
                for name in ("train_loss", "val_loss"):
                    np.testing.assert_allclose(lines[f"{arm} {name}"].get_ydata(), np.array(MNIST[name]) + 0.1 * place)
                    assert list(lines[f"{arm} {name}"].get_xdata()) == [1.0, 2.0, 3.0]
            assert (axes.get_xlabel(), axes.get_ylabel()) == ("epoch", "log loss (nats)")

    def test_dark_is_training_and_light_the_same_hue(self):
        lines = lines_of(draw(2, mnist()).figure.axes[0])
        for arm in PAPER_ARMS:
            dark, bright = lines[f"{arm} train_loss"], lines[f"{arm} val_loss"]
            assert to_hex(dark.get_color()).lower() == colour(arm).lower()
            assert to_hex(bright.get_color()).lower() == light(colour(arm))
            assert sum(to_rgb(bright.get_color())) > sum(to_rgb(dark.get_color()))
            assert bright.get_linewidth() < dark.get_linewidth()
            assert bright.get_zorder() < dark.get_zorder()

    def test_the_legend_names_what_is_drawn(self):
        assert legend_of(draw(2, mnist()).figure) == ["GELU", "ReLU", "ELU", "training, dropout off", "validation"]

    @pytest.mark.parametrize(
        ("number", "experiment", "dark", "bright", "scale"),
        [
            (5, "timit", "train_loss", "val_loss", 1),
            (6, "cifar10", "train_error", "test_error", 100),
            (7, "cifar100", "train_loss", "test_loss", 1),
        ],
    )
    def test_the_other_figures(self, number, experiment, dark, bright, scale):
        curves = {dark: [0.5, 0.3], bright: [0.6, 0.4], "val_error": [0.2, 0.1], "test_error": [0.6, 0.4]}
        (axes,) = draw(number, runs(experiment, curves)).figure.axes
        lines = lines_of(axes)
        assert len(lines) == 6
        np.testing.assert_allclose(lines[f"relu {dark}"].get_ydata(), [scale * 0.6, scale * 0.4])
        np.testing.assert_allclose(lines[f"elu {bright}"].get_ydata(), [scale * 0.8, scale * 0.6])
        assert axes.get_ylabel() == ("error (%)" if scale == 100 else "log loss (nats)")

    def test_the_autoencoder_has_a_panel_for_each_learning_rate(self):
        curves = {"train_loss": [0.02, 0.01], "test_loss": [0.03, 0.015]}
        records = runs("autoencoder", curves) + runs("autoencoder", shifted(curves, 1), learning_rate=1e-4)
        left, right = draw(4, records).figure.axes
        np.testing.assert_allclose(lines_of(left)["gelu test_loss"].get_ydata(), [0.03, 0.015])
        np.testing.assert_allclose(lines_of(right)["gelu test_loss"].get_ydata(), [1.03, 1.015])
        assert [left.get_title(), right.get_title()] == ["learning rate 0.001", "learning rate 0.0001"]

    def test_only_the_chosen_learning_rate_is_drawn(self):
        better = runs("timit", {**MNIST, "val_error": [0.01] * 3}, learning_rate=1e-4)
        drawing = draw(5, runs("timit", shifted(MNIST, 1)) + better)
        lines = lines_of(drawing.figure.axes[0])
        assert len(lines) == 6
        np.testing.assert_allclose(lines["gelu train_loss"].get_ydata(), MNIST["train_loss"])
        assert "Medians of 3 runs. Learning rate 0.0001, chosen on the validation set." in texts_of(drawing.figure)

    def test_the_caption_says_what_was_run(self):
        assert "Medians of 3 runs. Learning rate 0.001." in texts_of(draw(2, mnist()).figure)
        assert "Single runs. Learning rate 0.001." in texts_of(draw(5, runs("timit", MNIST, seeds=1)).figure)
        other = runs("timit", MNIST, ["gelu"]) + runs("timit", MNIST, ["relu"], seeds=1, learning_rate=1e-4)
        caption = "Medians of 1 to 3 runs. Learning rate: GELU 0.001, ReLU 0.0001."
        assert caption in texts_of(draw(5, other).figure)

    def test_where_most_runs_diverged_there_is_no_line_and_the_caption_says_so(self):
        records = runs("timit", MNIST)
        short = {"train_loss": curve([0.5]), "val_loss": curve([0.5])}
        records = [
            replace(record, status="diverged", curves=short) if record.arm == "elu" and record.seed else record
            for record in records
        ]
        drawing = draw(5, records)
        values = lines_of(drawing.figure.axes[0])["elu train_loss"].get_ydata()
        assert np.isfinite(values).tolist() == [True, False, False]
        assert any("2 runs diverged and count as infinite." in text for text in texts_of(drawing.figure))

    def test_the_steep_beginning_is_cut_off_and_nothing_later(self):
        steep = {"train_loss": [5.0, *[0.3] * 18, 0.4], "val_loss": [6.0, *[0.2] * 19]}
        steep |= {"val_error": [0.1] * 20, "test_error": [0.1] * 20}
        (axes,) = draw(5, runs("timit", steep)).figure.axes
        low, high = axes.get_ylim()
        assert low == 0
        assert 0.6 < high < 1.0  # the highest arm ends .2 higher, at .6
        assert axes.get_xlim() == (0, 20)

    def test_losses_far_from_zero_are_not_squeezed(self):
        far = {"train_loss": [2.0, 1.5], "val_loss": [2.1, 1.6], "val_error": [0.1] * 2, "test_error": [0.1] * 2}
        low, high = draw(5, runs("timit", far)).figure.axes[0].get_ylim()
        assert 1.2 < low < 1.5
        assert 2.3 < high < 2.5

    def test_a_band_from_the_lowest_to_the_highest_run(self):
        records = runs("timit", MNIST, ["gelu"])
        (axes,) = draw(5, records, FigureOptions(band=True)).figure.axes
        assert len(axes.collections) == 2
        dark = axes.collections[1].get_paths()[0].vertices
        assert dark[:, 1].max() == pytest.approx(0.31)
        assert dark[:, 1].min() == pytest.approx(0.09)
        assert not draw(5, records).figure.axes[0].collections

    def test_published_points_as_far_as_the_axes_reach(self):
        long = {name: [values[0]] * 30 for name, values in MNIST.items()}
        records = runs("mnist", shifted(long, -0.28), setting={"keep": 1.0})
        left = draw(2, records, FigureOptions(published=True)).figure.axes[0]
        marks = lines_of(left)["gelu train_loss published"]
        assert list(zip(marks.get_xdata(), marks.get_ydata(), strict=True)) == [
            (5.0, 0.065), (10.0, 0.032), (20.0, 0.016), (30.0, 0.0125)
        ]  # fmt: skip
        assert not any("published" in label for label in lines_of(draw(2, records).figure.axes[0]))
        assert "gelu val_loss published" not in lines_of(left)  # at epoch 50, which was not run
        assert "read from the paper's figure" in legend_of(left.figure)
        short = draw(2, mnist(), FigureOptions(published=True)).figure
        assert "read from the paper's figure" not in legend_of(short)  # none within three epochs

    def test_published_errors_are_in_per_cent(self):
        curves = {"train_error": [0.02] * 200, "test_error": [0.09] * 200}
        axes = draw(6, runs("cifar10", curves), FigureOptions(published=True)).figure.axes[0]
        np.testing.assert_allclose(lines_of(axes)["gelu test_error published"].get_ydata(), [9.30, 7.89])

    def test_further_arms_on_demand(self):
        records = runs("mnist", MNIST, ["gelu", "silu"], setting={"keep": 1.0})
        assert not [label for label in lines_of(draw(2, records).figure.axes[0]) if "silu" in label]
        axes = draw(2, records, FigureOptions(arms=("gelu", "silu"))).figure.axes[0]
        assert to_hex(lines_of(axes)["silu train_loss"].get_color()).lower() == colour("silu").lower()

    def test_several_learning_rates_that_nothing_chooses_among_are_all_drawn(self):
        records = runs("cifar10", {"train_error": [0.3], "test_error": [0.3]}, ["gelu"])
        records += runs("cifar10", {"train_error": [0.2], "test_error": [0.2]}, ["gelu"], learning_rate=1e-4)
        drawing = draw(6, records)
        styles = [line.get_linestyle() for line in drawing.figure.axes[0].lines]
        assert sorted(styles) == ["-", "-", "--", "--"]
        assert any("GELU 0.001, GELU 0.0001" in text for text in texts_of(drawing.figure))


class TestRobustness:
    def records(self, **named):
        return [
            replace(
                record,
                robustness=Robustness(
                    LEVELS,
                    tuple(0.02 + 0.1 * level + 0.01 * record.seed for level in LEVELS),
                    tuple(0.1 + level + record.seed for level in LEVELS),
                ),
            )
            for record in mnist(keeps=(1.0,), **named)
        ]

    def test_accuracy_and_loss_over_the_noise(self):
        drawing = draw(3, self.records())
        assert drawing.missing == ()
        accuracy, loss = drawing.figure.axes
        np.testing.assert_allclose(lines_of(accuracy)["gelu"].get_xdata(), LEVELS)
        np.testing.assert_allclose(lines_of(accuracy)["gelu"].get_ydata(), [97.0, 87.0, 67.0])
        np.testing.assert_allclose(lines_of(loss)["elu"].get_ydata(), [1.1, 2.1, 4.1])
        assert (accuracy.get_ylabel(), loss.get_ylabel()) == ("test accuracy (%)", "test log loss (nats)")
        assert "noise strength" in accuracy.get_xlabel()
        assert accuracy.get_ylim() == (0, 100)
        assert legend_of(drawing.figure) == ["GELU", "ReLU", "ELU"]

    def test_only_nets_without_dropout(self):
        drawing = draw(3, mnist(keeps=(0.5,)))
        assert (drawing.figure, drawing.missing) == (None, ("GELU", "ReLU", "ELU"))

    def test_the_band(self):
        accuracy, _ = draw(3, self.records(), FigureOptions(arms=("gelu",), band=True)).figure.axes
        heights = accuracy.collections[0].get_paths()[0].vertices[:, 1]
        assert (heights.max(), heights.min()) == (pytest.approx(98.0), pytest.approx(66.0))


class TestLabels:
    @pytest.mark.parametrize("number", [2, 3, 4, 5, 6, 7])
    def test_every_quick_figure_says_so(self, number):
        def records(preset):
            curves = {**MNIST, "test_loss": [0.1] * 3, "train_error": [0.1] * 3}
            robustness = Robustness((0.0, 1.0), (0.1, 0.2), (0.1, 0.2))
            name = {3: "mnist"}.get(number, FIGURES[number])
            setting = {"keep": 1.0} if name == "mnist" else {}
            return [
                replace(record, robustness=robustness) for record in runs(name, curves, setting=setting, preset=preset)
            ]

        assert QUICK in texts_of(draw(number, records("quick")).figure)
        assert QUICK not in texts_of(draw(number, records("full")).figure)

    def test_one_quick_run_is_enough(self):
        records = [*mnist(keeps=(1.0,)), *mnist(keeps=(0.5,), preset="quick")]
        with pytest.raises(PaperArgumentError, match="presets full, quick; a figure shows one"):
            draw(2, records)

    def test_substitute_data_are_labelled(self):
        corpus = "TIMIT, NLTK's sample split by speaker, NOT THE PAPER'S CORPUS: 96 training sentences"
        timit = {"class_path": "lit_gelu.data.TIMITData", "init_args": {}}
        records = [replace(record, data={"corpus": corpus}) for record in runs("timit", MNIST, data=timit)]
        assert "substitute data: NLTK's sample of TIMIT, not the corpus" in texts_of(draw(5, records).figure)


class TestMissing:
    def test_nothing_is_drawn_without_runs(self):
        for number in range(2, 8):
            drawing = draw(number, [])
            assert drawing.figure is None
            assert drawing.missing

    def test_what_is_missing_is_named(self):
        drawing = draw(2, mnist(keeps=(1.0,), arms=("gelu", "elu")))
        assert drawing.missing == (
            "no dropout: ReLU",
            "dropout, keep 0.5: GELU",
            "dropout, keep 0.5: ReLU",
            "dropout, keep 0.5: ELU",
        )
        assert [text.get_text() for text in drawing.figure.axes[1].texts] == ["no runs"]

    def test_runs_without_one_of_the_curves_count_as_missing(self):
        curves = {name: values for name, values in MNIST.items() if name != "train_loss"}
        drawing = draw(5, runs("timit", curves))
        assert drawing.missing == ("GELU", "ReLU", "ELU")
        assert len(lines_of(drawing.figure.axes[0])) == 3

    def test_runs_that_do_not_belong_together_are_refused(self):
        records = runs("timit", MNIST)
        short = shifted({name: values[:2] for name, values in MNIST.items()}, 0)
        with pytest.raises(RecordsError, match="other epochs"):
            draw(5, [*records[1:], run_record("timit", curves=short)])


class TestNames:
    def test_numbers_and_names(self):
        assert numbers_of(None) == [1, 2, 3, 4, 5, 6, 7]
        assert numbers_of(["cifar100", "1", "mnist", "2"]) == [1, 2, 7]

    @pytest.mark.parametrize("name", ["8", "0", "tweets", "Mnist"])
    def test_others_are_refused(self, name):
        with pytest.raises(PaperArgumentError, match=r"Accepted: 1 \(functions\), 2 \(mnist\), 3 \(mnist_robustness\)"):
            numbers_of([name])

    def test_no_figure_of_that_number(self):
        with pytest.raises(PaperArgumentError, match="No figure '8'"):
            draw(8, [])


class TestColours:
    def test_every_pair_of_arms_differs_also_without_red_or_green(self):
        """Viénot, Brettel and Mollon (1999): what a dichromat sees of linear RGB."""
        protan = np.array([[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]])
        deutan = np.array([[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]])
        linear = {arm: np.array(to_rgb(colour(arm))) ** 2.2 for arm in (*PAPER_ARMS, "silu")}
        for matrix in (np.eye(3), protan, deutan):
            seen = {arm: np.clip(matrix @ rgb, 0, 1) ** (1 / 2.2) for arm, rgb in linear.items()}
            for a in seen:
                for b in seen:
                    assert a == b or np.linalg.norm(seen[a] - seen[b]) > 0.2, (a, b)

    def test_an_unknown_arm_is_grey(self):
        assert len(set(to_rgb(colour("mine")))) == 1


class TestFiles:
    @pytest.mark.parametrize("form", ["png", "svg", "pdf"])
    def test_the_same_figure_gives_the_same_bytes(self, form, tmp_path):
        for name in ("a", "b"):
            write(draw(5, runs("timit", MNIST), FigureOptions(published=True, band=True)).figure, tmp_path / name, form)
        content = (tmp_path / "a").read_bytes()
        assert content == (tmp_path / "b").read_bytes()
        assert f"Matplotlib v{mpl.__version__}".encode().lower() not in content.lower()
        assert f"matplotlib version{mpl.__version__}".encode() not in content.lower()
        assert content.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[form])

    def test_the_users_style_changes_nothing(self, tmp_path):
        write(draw(5, runs("timit", MNIST)).figure, tmp_path / "a.png", "png")
        with mpl.rc_context({"font.size": 30, "axes.facecolor": "black", "savefig.dpi": 10}):
            write(draw(5, runs("timit", MNIST)).figure, tmp_path / "b.png", "png")
            assert mpl.rcParams["font.size"] == 30
        assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()

    def test_a_folder_that_cannot_be_written_to(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(UnwritablePathError):
            write(draw(1, []).figure, tmp_path / "file" / "figure_1.png", "png")

    def test_all_texts_lie_within_the_figure(self):
        corpus = "TIMIT, NLTK's sample split by speaker, NOT THE PAPER'S CORPUS: 96 training sentences"
        timit = {"class_path": "lit_gelu.data.TIMITData", "init_args": {}}
        one = [replace(r, data={"corpus": corpus}) for r in runs("timit", MNIST, data=timit, preset="quick")]
        curves = {"train_loss": [1.0] * 10, "test_loss": [1.0] * 10, "train_error": [0.05] * 200}
        curves |= {"test_error": [0.09] * 200}
        options = FigureOptions(published=True)
        two = runs("mnist", MNIST, setting={"keep": 1.0}) + runs("autoencoder", curves)
        drawn = [draw(1, []), draw(5, one, options), draw(2, two, options), draw(4, two, options)]
        drawn += [draw(6, runs("cifar10", curves), options), draw(7, runs("cifar100", curves), options)]
        for figure in (drawing.figure for drawing in drawn):
            canvas = FigureCanvasAgg(figure)
            canvas.draw()  # labels of axes take their places then
            renderer = canvas.get_renderer()
            box = figure.bbox
            sides = [side for axes in figure.axes for side in (axes.xaxis, axes.yaxis)]
            ticks = [
                tick.label1
                for side in sides
                for tick in side.get_major_ticks()
                if side.get_view_interval()[0] <= tick.get_loc() <= side.get_view_interval()[1]
            ]
            labels = [axes.yaxis.label for axes in figure.axes]
            for artist in [*figure.texts, *figure.legends, *labels, *ticks]:
                inside = artist.get_window_extent(renderer)
                assert box.x0 <= inside.x0 < inside.x1 <= box.x1, artist
                assert box.y0 <= inside.y0 < inside.y1 <= box.y1, artist
            boxes = [artist.get_window_extent(renderer) for artist in [*figure.texts, *figure.legends, *figure.axes]]
            for place, first in enumerate(boxes):
                assert not any(first.overlaps(second) for second in boxes[place + 1 :])
