"""The pages of `--report`: whole, escaped, with every figure, and as a browser draws them."""

import json
import shutil
import struct
import subprocess
import zlib
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from ems_cli.app import app
from ems_cli.render.html.markup import Markup, element

SMALL = ["--layers", "2", "--heads", "2", "--head-size", "16", "--block-size", "8"]
EVIL = "<script>alert(1)</script>&\"'"
TRACE = [
    {"timestamp": 0, "input_length": 20, "output_length": 1, "hash_ids": [1, 2]},
    {"timestamp": 9, "input_length": 30, "output_length": 1, "hash_ids": [1, 3]},
]
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Reader(HTMLParser):
    """Takes note of elements and text, and of tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text, self.broken, self.asked = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.asked += [value for name, value in attributes if name in {"src", "href"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.broken.append(tag)

    def handle_data(self, text):
        self.text.append(text)


def run(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})


@pytest.fixture(scope="module")
def evil_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages") / EVIL.replace("/", "_")
    folder.mkdir()
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "torch_dtype": "float16",
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    lines = "".join(f"{json.dumps(line)}\n" for line in TRACE)
    (folder / "trace.jsonl").write_text(lines, encoding="utf-8")
    return folder


@pytest.fixture(scope="module", params=["register", "bench", "verify", "replay"])
def made(request, evil_folder):
    """Return the JSON and the page of one run."""
    page = evil_folder / f"{request.param}.html"
    model = ["--model", str(evil_folder / "config.json"), "--block-size", "8"]
    arguments = {
        "register": [*model, "--blocks", "8"],
        "bench": [*model, "--blocks", "8", "--runs", "3"],
        "verify": model,
        "replay": [str(evil_folder / "trace.jsonl"), "--block-tokens", "16"],
    }[request.param]
    result = run(request.param, *arguments, "--json", "--report", str(page))
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), page.read_text(encoding="utf-8")


def test_a_page_is_whole_and_asks_for_nothing(made):
    reader = Reader(made[1])
    assert made[1].startswith("<!DOCTYPE html>")
    assert (reader.open, reader.broken) == ([], [])
    assert {"html", "head", "title", "body", "main", "table"} <= set(reader.tags)
    assert reader.asked == []
    assert not {"script", "link", "img", "iframe"} & set(reader.tags)
    style = made[1].partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme: dark" in style
    assert "@media print" in style


def test_what_comes_from_outside_is_escaped(made):
    assert "<script" not in made[1]
    assert "&lt;script&gt;alert(1)" in made[1]


def figures(value):
    if isinstance(value, dict):
        for each in value.values():
            yield from figures(each)
    elif isinstance(value, list):
        for each in value:
            yield from figures(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield json.dumps(value)


def test_every_figure_of_the_json_is_on_the_page(made):
    report, page = made
    words = set(" ".join(Reader(page).text).replace(",", " ").split())
    report.pop("schema")
    assert [figure for figure in figures(report) if figure not in words] == []


def test_a_simulated_page_says_so_above_everything(made):
    report, page = made
    text = " ".join(Reader(page).text)
    assert ("SIMULATED: there was no NPU" in text) == ("simulated" in report)


def test_pictures_are_inline(made):
    assert "svg" in Reader(made[1]).tags


def test_markup_is_what_was_marked_as_such():
    assert element("p", "<b>", Markup("<i></i>"), ["&", ["x"]], class_='"') == (
        '<p class="&quot;">&lt;b&gt;<i></i>&amp;x</p>'
    )


def test_a_page_that_cannot_be_written_is_refused_at_once(tmp_path):
    for place in (tmp_path, tmp_path / "none" / "page.html"):
        result = run("register", *SMALL, "--report", str(place))
        assert (result.exit_code, "--report" in result.stderr) == (2, True)


def test_a_failed_verification_tells_its_faults_on_the_page(monkeypatch, tmp_path):
    from ems.layout import part  # noqa: PLC0415 - as it is seen by the library
    from ems.layout.copy_plan import Spans, plan_spans  # noqa: PLC0415

    def half(*arguments):
        spans = plan_spans(*arguments)
        return Spans(spans.device, spans.host, spans.nbytes // 2)

    monkeypatch.setattr(part, "plan_spans", half)
    page = tmp_path / "page.html"
    result = run("verify", *SMALL, "--json", "--report", str(page))
    assert result.exit_code == 1
    text = " ".join(Reader(page.read_text(encoding="utf-8")).text)
    faults = [step["fault"] for step in json.loads(result.stdout)["steps"] if step["fault"]]
    assert [fault["text"] for fault in faults if fault["text"] not in text] == []
    assert "What is wrong" in text


CHROMIUM = shutil.which("chromium")


def pixels(path):
    """Return the first pixel of each row of an 8-bit PNG, and how many colours its rows hold."""
    raw = path.read_bytes()
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    while at < len(raw):
        (length,) = struct.unpack(">I", raw[at : at + 4])
        kind = raw[at + 4 : at + 8]
        if kind == b"IHDR":
            width, height, _, colour = struct.unpack(">IIBB", raw[at + 8 : at + 18])
        if kind == b"IDAT":
            packed += raw[at + 8 : at + 8 + length]
        at += length + 12
    each = {2: 3, 6: 4}[colour]
    rows = zlib.decompress(packed)
    return width, height, rows[1 : 1 + each], len({rows[i] for i in range(0, len(rows), 97)})


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_draws_the_page(dark, tmp_path):
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    assert run("register", *SMALL, "--report", str(page)).exit_code == 0
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    flags += ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
    command = [
        str(CHROMIUM),
        *flags,
        f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=900,1200",
        f"--screenshot={picture}",
        page.as_uri(),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    width, height, corner, colours = pixels(picture)
    assert (width, height) == (900, 1200)
    assert colours > 20
    assert (sum(corner[:3]) < 3 * 64) == dark
