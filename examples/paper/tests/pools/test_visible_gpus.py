"""What CUDA_VISIBLE_DEVICES says in worker processes."""

import pytest

from gelu_paper.errors import PaperArgumentError
from gelu_paper.pools.visible_gpus import visible_gpus


@pytest.mark.parametrize(
    ("given", "count", "variable", "expected"),
    [
        (["all"], 3, None, ("0", "1", "2")),
        (["2", "0"], 3, None, ("2", "0")),
        (["all"], 2, "5,7", ("5", "7")),
        (["1"], 2, "5, 7", ("7",)),
        (["0"], 1, "GPU-8932f937-d72c", ("GPU-8932f937-d72c",)),
        (["all"], 1, "3,-1,5", ("3",)),  # CUDA ends the list where a name is none
    ],
)
def test_gpus_are_counted_as_this_process_sees_them(given, count, variable, expected):
    assert visible_gpus(given, count, variable) == expected


@pytest.mark.parametrize(
    "given", [["2"], ["-1"], ["0", "0"], ["gelu"], ["all", "0"], ["1.0"], ["\u0661"], ["9" * 5000], []]
)
def test_others_are_refused(given):
    with pytest.raises(PaperArgumentError, match="accepted: all, or some of 0 1, each once"):
        visible_gpus(given, 2, None)


@pytest.mark.parametrize(("variable", "said"), [(None, "no GPU here. Leave"), ("", r"\(CUDA_VISIBLE_DEVICES is ''\)")])
def test_no_gpu_is_said(variable, said):
    with pytest.raises(
        PaperArgumentError, match=f"--devices all given, but torch sees {'no GPU here ' * (variable == '')}{said}"
    ):
        visible_gpus(["all"], 0, variable)
