"""What is written is what is read, whatever the text; what is damaged is refused in a sentence."""

import json
import math
from dataclasses import asdict
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_gelu.report import ReportedRun, ReportFileError, from_json, page, read_report, to_json
from lit_gelu.report.content import (
    ExportedFile,
    LoggedCurve,
    OptimizerSettings,
    RunFinding,
    SiteActivations,
    SwapChange,
    SwapEvent,
)

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "]]>&amp;&#0;<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "\ud800\x00\u2028\u202egnp",
    "__proto__",
    "javascript:alert(1)",
]
texts = st.sampled_from(HOSTILE) | st.text(max_size=8)
numbers = st.floats(allow_nan=True, allow_infinity=True)
steps = st.integers(0, 10**9)


def curve(name, points):
    return LoggedCurve(name, tuple(step for step, _ in points), tuple(value for _, value in points))


curves = st.builds(
    curve, texts | st.just("curvature/net.1/share_dead"), st.lists(st.tuples(steps, numbers), max_size=4)
)
changes = st.lists(st.builds(SwapChange, texts, texts, texts), max_size=2).map(tuple)
runs = st.builds(
    ReportedRun,
    title=texts,
    source=texts,
    made=texts,
    status=st.sampled_from(["finished", "failed", "interrupted", "unknown"]),
    failure=texts,
    steps=st.none() | steps,
    seconds=st.none() | numbers,
    configuration=st.dictionaries(texts, st.dictionaries(texts, texts, max_size=2), max_size=2),
    optimizers=st.lists(st.builds(OptimizerSettings, texts, numbers), max_size=1).map(tuple),
    curves=st.lists(curves, max_size=3).map(tuple),
    sites=st.lists(st.builds(SiteActivations, texts, texts, texts), max_size=2).map(tuple),
    swaps=st.lists(st.builds(SwapEvent, steps, st.none() | steps, changes), max_size=2).map(tuple),
    findings=st.lists(
        st.builds(
            RunFinding, st.sampled_from(["alarm", "good"]), texts, texts, texts, texts, st.dictionaries(texts, numbers)
        ),
        max_size=2,
    ).map(tuple),
    files=st.lists(
        st.builds(ExportedFile, name=texts, size=steps, largest_error=numbers, trouble=texts), max_size=2
    ).map(tuple),
    environment=st.dictionaries(texts, texts, max_size=2),
    missing=st.lists(texts, max_size=2).map(tuple),
)


def comparable(value):
    """Return plain data in which NaN equals NaN."""
    if isinstance(value, dict):
        return {key: comparable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(entry) for entry in value]
    return "nan" if isinstance(value, float) and math.isnan(value) else value


class Blocks(HTMLParser):
    """What is in the scripts of a page, as Python's own parser of HTML sees it."""

    def __init__(self):
        super().__init__()
        self.scripts, self.tags, self.attributes = [], set(), set()
        self.inside = False

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "script":
            self.inside = True
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "script"

    def handle_data(self, data):
        if self.inside:
            attributes, before = self.scripts[-1]
            self.scripts[-1] = (attributes, before + data)


TEXT = "h1 h2 h3 p ul ol li dl div dt dd span strong a code table thead tbody tr th td"
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "header", "main", "footer", "nav", "section", "script"),
    *("figure", "figcaption", "svg", "text", "line", "polyline", "circle", "rect", "details", "summary"),
    *TEXT.split(),
}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(runs)
def test_a_page_of_any_text_holds_one_block_of_data_and_nothing_else(run):
    made = page(run)
    made.encode("utf-8")
    parser = Blocks()
    parser.feed(made)
    ((attributes, content),) = parser.scripts
    assert attributes == {"type": "application/json", "id": "lit-gelu-report"}
    assert parser.tags <= TAGS
    assert not [name for name in parser.attributes if name.startswith("on") or name in {"src", "srcdoc", "action"}]
    assert json.loads(content)["schema_version"] == 1
    assert comparable(asdict(from_json(content))) == comparable(asdict(run))


def test_read_from_a_file(tmp_path):
    run = ReportedRun(title=HOSTILE[0], source="RunReport", made="now", curves=(LoggedCurve("a", (1,), (math.inf,)),))
    (tmp_path / "report.html").write_text(page(run), encoding="utf-8")
    assert read_report(tmp_path / "report.html") == run


def test_json_has_only_numbers_that_json_knows():
    run = ReportedRun(
        title="", source="", made="", seconds=math.nan, curves=(LoggedCurve("a", (1, 2), (math.nan, -math.inf)),)
    )
    plain = json.loads(to_json(run), parse_constant=pytest.fail)
    assert (plain["seconds"], plain["curves"][0]["values"]) == ("nan", ["nan", "-inf"])


def changed(**entries):
    return json.dumps({**json.loads(to_json(ReportedRun(title="t", source="s", made="m"))), **entries})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no readable JSON"),
        ("[" * 100_000, "too deep"),
        ("1" * 10_000, "no readable JSON"),
        ("[]", "does not hold"),
        ('{"schema": "other"}', "does not hold"),
        (changed(schema_version=2), "version 2"),
        (changed(schema_version="1" * 5000), "version '1"),
        (changed(title=1), "title is 1"),
        (changed(steps=True), "steps is True"),
        (changed(steps=1.5), "steps is 1.5"),
        (changed(seconds="nano"), "no number"),
        (changed(seconds=10**400), "no number"),
        (changed(status="well"), "status is 'well'"),
        (changed(curves=[{"name": "a", "steps": [1, 2], "values": [0.5]}]), "one value a step"),
        (changed(curves=[{"name": "a", "steps": [1]}]), "missing"),
        (changed(curves={"name": "a"}), r"curves is \{"),
        (changed(swaps=[[]]), r"swaps\[0\] is \[\]"),
        (changed(configuration={"a": {"b": 1}}), "configuration"),
        (changed(exec="rm"), "unknown entry 'exec'"),
    ],
)
def test_what_is_damaged_is_refused(text, message):
    with pytest.raises(ReportFileError, match=message) as caught:
        from_json(text)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b'<script type="application/json" id="lit-gelu-report">{'])
def test_files_that_are_no_page(content, tmp_path):
    (tmp_path / "page.html").write_bytes(content)
    with pytest.raises(ReportFileError, match="no page of a run"):
        read_report(tmp_path / "page.html")


@pytest.mark.parametrize("path", ["none.html", ".", "a" * 5000, "\0"], ids=["missing", "folder", "long", "nul"])
def test_paths_that_cannot_be_read(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ReportFileError, match="cannot be read"):
        read_report(path)
