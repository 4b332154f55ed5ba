"""examples/web as a person starts it, and headless Chromium that opens it, driven through the WebDriver standard."""

import functools
import http.server
import math
import os
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from child_processes import PATIENCE

EXAMPLE = Path(__file__).parents[1] / "examples" / "web"
SOFTWARE_GPU = (  # WebGPU without a graphics card
    "--enable-unsafe-webgpu",
    "--enable-unsafe-swiftshader",
    "--use-webgpu-adapter=swiftshader",
    "--enable-features=Vulkan",
)
# What a browser hands to a script are JSON values; an exception becomes one of Python.
ASYNC = """
const done = arguments[arguments.length - 1];
(async (...args) => {{ {body} }})(...Array.from(arguments).slice(0, -1)).then(
  (value) => done({{ value }}), (error) => done({{ error: String(error.message ?? error) }}));
"""


RUNTIME = EXAMPLE / "node_modules" / "onnxruntime-web"


def missing(package=RUNTIME, name="onnxruntime-web in examples/web/node_modules"):
    """Return what the browser's tests lack here, or None: the browser, its driver, or a package of npm."""
    lacks = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if find_spec("selenium") is None:
        lacks.append("the Python package selenium")
    if not package.exists():
        lacks.append(f"the npm package {name}")
    return f"no {', no '.join(lacks)}: `make browser` installs them" if lacks else None


class Page:
    """A page in Chromium."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, url):
        """Load the page, and wait until it has its net."""
        from selenium.webdriver.support.ui import WebDriverWait

        self.driver.get("about:blank")
        self.driver.get_log("browser")  # what was said before is not this page's
        self.driver.get(url)
        body = self.driver.find_element("tag name", "body")
        WebDriverWait(self.driver, 60, 0.05).until(lambda _: body.get_attribute("data-ready"))

    def run(self, body, *arguments):
        """Run the body of an asynchronous function `(...args)` in the page and return what it returns."""
        result = self.driver.execute_async_script(ASYNC.format(body=body), *arguments)
        if "error" in result:
            raise RuntimeError(result["error"])
        return result.get("value")

    def element(self, name):
        return self.driver.find_element("id", name)

    def bars(self):
        """Return the ten probabilities as the bars show them, once the net is idle."""
        self.run(
            "const wait = () => new Promise((done) => setTimeout(done, 20));"
            "do await wait(); while (document.getElementById('bars').ariaBusy === 'true')"
        )
        return self.driver.execute_script("return Array.from(document.querySelectorAll('#bars meter'), (m) => m.value)")

    def pixels(self):
        """Return the image that the net got, 0 (paper) to 255, as the page shows it."""
        return self.run(
            "const { width, height } = document.getElementById('input');"
            "const { data } = document.getElementById('input').getContext('2d').getImageData(0, 0, width, height);"
            "return Array.from(data).filter((_, i) => i % 4 == 3)"
        )

    def draw(self, strokes, pointer="mouse"):
        """Draw lines given by points in [0, 1] x [0, 1], with real input events."""
        from selenium.webdriver.common.actions.action_builder import ActionBuilder
        from selenium.webdriver.common.actions.pointer_input import PointerInput

        canvas = self.element("drawing")
        width, height = canvas.rect["width"], canvas.rect["height"]
        actions = ActionBuilder(self.driver, mouse=PointerInput(pointer, f"a {pointer}"), duration=5)
        for stroke in strokes:
            for i, (x, y) in enumerate(stroke):
                actions.pointer_action.move_to(canvas, round((x - 0.5) * width), round((y - 0.5) * height))
                if i == 0:
                    actions.pointer_action.pointer_down()
            actions.pointer_action.pointer_up()
        actions.perform()

    def errors(self):
        """Return what the console has as errors since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Print nothing for each request."""


@contextmanager
def plain_server(folder):
    """Give a folder's files out, and yield the address."""
    handler = functools.partial(Silent, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def chromium_or_skip(*package):
    """Yield a page in Chromium, for a fixture; skip where something is missing."""
    if reason := missing(*package):
        pytest.skip(reason)
    with chromium() as page:
        yield page


@contextmanager
def chromium(*arguments):
    """Start Debian's Chromium without a window."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    # Containers run as root, for whom Chromium has no sandbox, and have a small /dev/shm.
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "window-size=1100,1000"):
        options.add_argument(f"--{argument}")
    for argument in arguments:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_script_timeout(PATIENCE)
    try:
        yield Page(driver)
    finally:
        driver.quit()


@contextmanager
def served(folder, *arguments):
    """Run examples/web/serve.py as its README says, and give the address that it prints."""
    command = [sys.executable, str(EXAMPLE / "serve.py"), "--output", str(folder), "--port", "0", *arguments]
    environment = {**os.environ, "LIT_GELU_PLUGINS": "0", "CUDA_VISIBLE_DEVICES": ""}
    folder.mkdir(parents=True, exist_ok=True)
    with (
        (folder / "stderr.txt").open("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process,
    ):
        try:
            address = next((line.split()[0] for line in process.stdout if line.startswith("http://")), None)
            if address is None:
                errors.seek(0)
                raise RuntimeError(f"serve.py ended: {errors.read()[-3000:]}")
            yield address
        finally:
            process.terminate()


def arc(x, y, across, down, start, end, points=16):
    """Return points of an arc of an ellipse; angles in degrees, clockwise from the right."""
    angles = [math.radians(start + (end - start) * i / points) for i in range(points + 1)]
    return [(x + across * math.cos(angle), y + down * math.sin(angle)) for angle in angles]


DIGITS = {
    0: [arc(0.5, 0.5, 0.22, 0.34, -90, 270)],
    1: [[(0.4, 0.28), (0.53, 0.15), (0.53, 0.85)]],
    2: [[*arc(0.5, 0.33, 0.2, 0.18, -170, 30), (0.3, 0.84), (0.73, 0.84)]],
    3: [[*arc(0.47, 0.32, 0.2, 0.17, -150, 90), *arc(0.47, 0.67, 0.22, 0.18, -90, 150)]],
    4: [[(0.42, 0.15), (0.28, 0.55), (0.75, 0.55)], [(0.62, 0.3), (0.62, 0.87)]],
    5: [[(0.7, 0.16), (0.36, 0.16), (0.34, 0.47), *arc(0.48, 0.64, 0.21, 0.2, -120, 140)]],
    6: [[(0.58, 0.14), (0.4, 0.4), (0.33, 0.62), *arc(0.5, 0.67, 0.18, 0.18, 180, -180)]],
    7: [[(0.28, 0.17), (0.72, 0.17), (0.45, 0.86)]],
    8: [[*arc(0.5, 0.32, 0.16, 0.17, 90, 450), *arc(0.5, 0.68, 0.19, 0.19, -90, 270)]],
    9: [[*arc(0.5, 0.33, 0.18, 0.18, 0, -360), (0.68, 0.33), (0.66, 0.6), (0.6, 0.86)]],
}
