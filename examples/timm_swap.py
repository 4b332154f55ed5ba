"""Swap every activation of a timm model and export it: ``python examples/timm_swap.py``.

Needs ``pip install timm``. No download (random weights); some seconds on a CPU. Writes into ``runs/``.
"""

import timm
import torch

from lit_gelu.export import check_parity, export_onnx
from lit_gelu.surgery import coverage, swap


def main() -> None:
    """Swap, prove that nothing of the old activations is left, export, compare."""
    torch.manual_seed(0)
    sample = torch.randn(2, 3, 64, 64)
    # MobileViTv2 has SiLU modules in its convolutions and F.relu(...) in its attention, which replacing modules, or
    # timm's own act_layer=, does not reach.
    model = timm.create_model("mobilevitv2_050", pretrained=False, num_classes=10).eval()

    print("Calls of activations before:", coverage(model, sample).counts())
    report = swap(model, {"*": "gelu"}, sample)
    print(f"{len(report)} sites swapped, among them:")
    for row in report.rows:
        if row.mechanism != "module":
            print(f"  {row}")
    after = coverage(model, sample)
    print("Calls of activations after:", after.counts())
    print("Gates are left alone:", sorted({str(site.spec) for site in after.sites if site.role == "gate"}))

    # In the file every GELU takes the form that is asked for; here the exact one, as trained.
    exported = export_onnx(model, "runs/timm_swap.onnx", sample)
    print("Operators of the activations in the file:", exported.activation_census)
    print(check_parity(model, "runs/timm_swap.onnx", input_sample=sample))


if __name__ == "__main__":
    main()
