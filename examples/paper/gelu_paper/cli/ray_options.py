"""The options of ``lit-gelu paper run`` for Ray in the place of processes of this machine."""

from pathlib import Path
from typing import TYPE_CHECKING

import jsonargparse

from gelu_paper.errors import PaperArgumentError
from gelu_paper.jobs import RunOptions

if TYPE_CHECKING:
    from gelu_paper.pools.job_pool import JobPool

ENGINES = ("processes", "ray")
LOGS_FOLDER = "ray"  # in that of the results


def add_engine_options(parser: jsonargparse.ArgumentParser) -> None:
    """Add the options that choose and describe the engine."""
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default=ENGINES[0],
        help="ray: also on several machines; pip install 'lit-gelu[ray]'",
    )
    parser.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        default=None,
        help="of a Ray cluster that this machine belongs to: auto or HOST:6379; default: Ray is started here",
    )
    parser.add_argument(
        "--gpu-share", type=float, metavar="SHARE", default=None, help="of a GPU that Ray gives a run; default: 1"
    )
    parser.add_argument(
        "--allow-other-versions",
        action="store_true",
        help="Ray's nodes may have other versions of Python, torch and so on; records name theirs",
    )


def check_engine(arguments: jsonargparse.Namespace, accelerator: str) -> None:
    """Refuse options that do not fit the engine or the accelerator."""
    if arguments.engine != "ray":
        for name in ("ray_address", "gpu_share", "allow_other_versions"):
            if (given := getattr(arguments, name)) is not None and given is not False:
                raise PaperArgumentError(f"--{name.replace('_', '-')} is for Ray. Add --engine ray, or leave it out.")
        return
    if arguments.devices:
        raise PaperArgumentError(
            f"--devices {' '.join(arguments.devices)} is for --engine processes: Ray hands out GPUs itself. Leave it "
            "out, and give --gpu-share if runs are to share a GPU; CUDA_VISIBLE_DEVICES, set before Ray is started, "
            "names those that it may use."
        )
    if arguments.gpu_share is None:
        return
    if accelerator not in {"cuda", "gpu"}:
        raise PaperArgumentError(
            f"--gpu-share is for GPUs, and --accelerator is {accelerator}. Give --accelerator cuda, or leave it out."
        )
    if not 0 < arguments.gpu_share <= 1:
        raise PaperArgumentError(
            f"--gpu-share {arguments.gpu_share:g} given; accepted: above 0, up to 1; .25 for four runs on a GPU."
        )


def ray_pool(arguments: jsonargparse.Namespace, options: RunOptions, workers: int | None, results: Path) -> "JobPool":
    """Return a pool on Ray; it is started, or joined, when it is entered."""
    from gelu_paper.pools.ray_pool import RayPool  # Ray and Lightning, which the other engine or --help do without

    has_gpu = options.accelerator in {"cuda", "gpu"}
    return RayPool(
        options,
        address=arguments.ray_address,
        jobs=workers,
        gpus=(arguments.gpu_share or 1.0) if has_gpu else 0.0,
        logs=results.absolute() / LOGS_FOLDER,
        allow_other_versions=arguments.allow_other_versions,
    )
