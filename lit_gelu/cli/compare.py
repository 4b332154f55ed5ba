"""``lit-gelu compare``: whether runs that are there differ, by the statistics of ``lit-gelu choose``."""

from collections.abc import Sequence
from typing import Literal

from lit_gelu.cli.terminal import present


def compare(
    *runs: str,
    metric: str = "value",
    group: str = "group",
    seed: str = "seed",
    mode: Literal["min", "max"] | None = None,
    baseline: str | None = None,
    ignore: Sequence[str] = (),
    json: str | None = None,
) -> int:
    """Compare runs that are there: what is decided, and what is not.

    in a shell:
      lit-gelu compare runs.csv --metric test_error                    columns run, group, seed, test_error
      lit-gelu compare lightning_logs --group activation --metric val_loss
      lit-gelu compare wandb_export.csv --group optimizer --metric val/acc --baseline adamw --json result.json

    Args:
        runs: tables with a line for each run, or log folders of Lightning's CSVLogger or TensorBoardLogger
        metric: the column, or the logged metric, whose last value decides
        group: the column or hyper-parameter that says what is compared
        seed: the column or hyper-parameter of the seed; seed_everything is one too
        mode: whether less of the metric is better, or more; default: its name says which
        baseline: one of the groups, with which the others are compared too
        ignore: settings in which runs may differ
        json: print JSON, and nothing else on standard output; or write it into a file
    """
    from lit_gelu.choose import compare as compare_runs

    choice = compare_runs(
        list(runs), metric=metric, group=group, seed=seed, mode=mode, baseline=baseline, ignore=ignore
    )
    present(choice, json=json)
    return 0
