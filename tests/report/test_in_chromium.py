"""The page of a real run with a hostile title, opened in Chromium: nothing is asked of the net, nothing runs."""

import pytest
import web_pages
from lightning.pytorch.callbacks import ModelCheckpoint
from small_task import SmallData, quiet_trainer

from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap, LossCurvatureMonitor, OnnxExport, RunReport
from lit_gelu.tasks import MNISTClassifier

pytestmark = pytest.mark.full

BAD = "</script><img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
WIDER = "return document.documentElement.scrollWidth > document.documentElement.clientWidth"
ASKED = "return performance.getEntriesByType('resource').map((entry) => entry.name)"
CONTRAST = """
const luminance = (colour) => colour.match(/[0-9.]+/g).slice(0, 3).map((c) => c / 255)
  .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const background = (element) => {
  for (; element; element = element.parentElement) {
    const colour = getComputedStyle(element).backgroundColor;
    if (colour !== 'rgba(0, 0, 0, 0)') return colour;
  }
  return 'rgb(255, 255, 255)';
};
return Array.from(document.querySelectorAll('h1, h2, h3, p, li, dt, dd, td, th, a, summary, .level, text')).map((e) => {
  const style = getComputedStyle(e);
  const [a, b] = [e.tagName === 'text' ? style.fill : style.color, background(e)].map(luminance);
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}).reduce((least, ratio) => Math.min(least, ratio), 21);
"""


@pytest.fixture(scope="module")
def browser():
    for page_in_chromium in web_pages.chromium_or_skip(web_pages.EXAMPLE, "examples/web"):
        yield page_in_chromium.driver


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """The page of a run with every callback that has something to say."""
    folder = tmp_path_factory.mktemp("real")
    callbacks = [
        ActivationSwap({"activation:relu": "gelu"}, at_epoch=2),
        ActivationCurvatureMonitor(every_n_steps=1, dead_unit_window=2),
        LossCurvatureMonitor(["top_eigenvalue", "directional"], every_n_steps=2, fraction=None),
        ModelCheckpoint(folder, monitor="val_loss"),
        OnnxExport(str(folder / "net.onnx")),
        RunReport(str(folder / "report.html"), title=BAD),
    ]
    trainer = quiet_trainer(default_root_dir=folder, callbacks=callbacks, max_epochs=4, enable_checkpointing=True)
    model, data = MNISTClassifier("relu", hidden_layers=2), SmallData()
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    return folder / "report.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_wide_and_on_a_phone(scheme, browser, real):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    for width in (1100, 360):
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get_log("browser")
        browser.get(real.as_uri())
        assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
        assert browser.title != "run"
        assert browser.execute_script(ASKED) == []
        assert not browser.execute_script(WIDER)
        assert browser.execute_script(CONTRAST) >= 4.5  # WCAG 2.2, 1.4.3
