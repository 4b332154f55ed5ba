"""Draws docs/images/report.png: the report of a real run, opened in Chromium.

It takes Chromium and selenium (``make browser``) and two minutes on two cores. ``--folder`` keeps the page, and
pictures of it in light and dark, on a wide screen and on a phone.
"""

import argparse
import io
import shutil
import tempfile
from pathlib import Path

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from lit_gelu.callbacks import (
    ActivationCurvatureMonitor,
    ActivationSwap,
    LossCurvatureMonitor,
    OnnxExport,
    RunReport,
)
from lit_gelu.data import DigitsData
from lit_gelu.files import write_atomically
from lit_gelu.tasks import MNISTClassifier

PICTURE = Path(__file__).resolve().parent / "images" / "report.png"
SIZES = {"wide": (1100, 1900), "phone": (390, 844)}
QUANTITIES = ("top_eigenvalue", "trace", "directional")


def train(folder: Path, epochs: int = 6) -> Path:
    """Train on digits with ReLU, swap to GELU half-way, measure and export; return the page."""
    torch.set_num_threads(1)
    seed_everything(0, verbose=False)
    report = RunReport(str(folder / "report.html"), title="ReLU, then GELU, on digits")
    callbacks = [
        ActivationSwap({"activation:relu": "gelu"}, at_epoch=epochs // 2, curvature=True),
        ActivationCurvatureMonitor(every_n_steps=5, dead_unit_window=10),
        LossCurvatureMonitor(QUANTITIES, every_n_steps=10),
        ModelCheckpoint(folder, monitor="val_loss"),
        OnnxExport(str(folder / "digits.onnx")),
        report,
    ]
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        default_root_dir=folder,
        log_every_n_steps=5,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )
    model, data = MNISTClassifier(activation="relu"), DigitsData()
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    return folder / "report.html"


def photographs(page: Path) -> dict[str, bytes]:
    """Return the page as PNG files: wide and on a phone, light and dark; the wide ones as far as the first screens."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "hide-scrollbars"):
        options.add_argument(f"--{argument}")
    taken = {}
    with webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver"))) as driver:
        for scheme in ("light", "dark"):
            preferred = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", preferred)
            for name, (width, height) in SIZES.items():
                size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": name == "phone"}
                driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
                driver.get(page.resolve().as_uri())
                whole = driver.execute_script("return document.documentElement.scrollHeight")
                driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size | {"height": whole})
                taken[f"{scheme}_{name}"] = driver.get_screenshot_as_png()
    return taken


def main() -> None:
    """Train, photograph, and write the picture of docs/report.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to keep the page and all pictures")
    parser.add_argument("--page", type=Path, help="photograph this page, and train nothing")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        taken = photographs(given.page or train(folder))
        for name, content in taken.items():
            (folder / f"{name}.png").write_bytes(content)
    if given.page is None:
        width, height = SIZES["wide"]
        small = Image.open(io.BytesIO(taken["light_wide"])).convert("RGB").crop((0, 0, width, height))
        with write_atomically(PICTURE) as path:
            small.quantize(64, dither=Image.Dither.NONE).save(path, "PNG", optimize=True)
        print(f"wrote {PICTURE.name}, {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
