"""The built pages: every public name is in them, the search finds it, and they fit a phone and the dark."""

import functools
import http.server
import importlib
import inspect
import re
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.blocks import DOCS, ROOT

import penstock
from penstock import errors

pytest.importorskip("sphinx")
MODULES = [
    "penstock",
    "penstock.contracts",
    "penstock_tools.exchange",
    "penstock.staged",
    "penstock_tools.segmentwise",
    "penstock.testing",
    "penstock_spark",
]
PHONE = 390
WIDE_PAGES = [
    "index",
    "tutorial",
    "comparison",
    "configuration",
    "errors",
    "performance",
    "glossary",
    "spark-source",
    "api/store",
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built pages; a warning of Sphinx fails the tests."""
    folder = tmp_path_factory.mktemp("pages")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", folder / "cache", DOCS, folder / "html"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def documented(built: Path) -> dict[str, str]:
    """Return the Python names of the inventory, each with its page."""
    data = (built / "objects.inv").read_bytes().split(b"\n", 4)[4]
    rows = (line.split(" ", 4) for line in zlib.decompress(data).decode().splitlines())
    return {name: uri.partition("#")[0] for name, role, _, uri, _ in rows if role.startswith("py:")}


def resolve(name: str) -> object:
    """Return the object with a dotted name; None if there is none, as for an attribute of instances."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            found = getattr(found, part, None)
        return found
    return None


@pytest.mark.slow
def test_every_exported_name_is_in_the_reference(documented: dict[str, str]) -> None:
    known = [resolve(name) for name in documented]
    for module in MODULES:
        there = importlib.import_module(module)
        missing = [
            name for name in there.__all__
            if f"{module}.{name}" not in documented and not any(getattr(there, name) is each for each in known)
        ]  # fmt: skip
        assert not missing, f"docs/api names no {module}: {missing}"


@pytest.mark.slow
def test_every_error_and_every_public_method_is_in_the_reference(
    documented: dict[str, str],
) -> None:
    classes = [
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.PenstockError)
    ]
    assert [name for name in classes if f"penstock.errors.{name}" not in documented] == []
    methods = [name for name in dir(penstock.Store) if not name.startswith("_")]
    assert {"put", "commit_offset", "scan", "offset_at", "submit"} <= set(methods)
    assert [name for name in methods if f"penstock.Store.{name}" not in documented] == []


@pytest.mark.slow
def test_every_attribute_of_a_value_is_on_its_page(built: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (built / "api" / "values.html").read_text())
    for value in (
        penstock.Message,
        penstock.StoredMessage,
        penstock.Receipt,
        penstock.ReadResult,
        penstock.ReadStatus,
    ):
        missing = [
            name
            for name in vars(value)
            if not name.startswith("_") and not re.search(rf"\b{name}\b", text)
        ]
        assert not missing, f"{value.__name__}: {missing}"


@pytest.mark.slow
def test_a_compiled_method_has_its_signature(built: Path) -> None:
    text = re.sub(r"<[^>]+>|\s", "", (built / "api" / "store.html").read_text())
    assert "put(topic:str,body:" in text
    assert "commit_offset(group:str,topic:str,queue:int,*,offset:int)" in text


# --- in a browser


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        pass


@pytest.fixture(scope="module")
def address(built: Path) -> Iterator[str]:
    """Serve the pages on this machine: a frame may be measured only if it comes from where its page does."""
    serve = functools.partial(Quiet, directory=str(built))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def look(browser: str, home: Path, url: str, *options: str) -> str:
    """Open a page in a headless browser and return what it has become."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=20000",
               f"--user-data-dir={home}", *options, "--dump-dom", url]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout


# A window cannot be as narrow as a phone, but a frame can.
FRAMES = """<body style="margin:0"><script>
const frames = PAGES.map(page => {
  const frame = document.createElement("iframe");
  frame.width = WIDTH; frame.height = 800; frame.src = page + ".html"; document.body.append(frame);
  return frame;
});
onload = () => { document.body.insertAdjacentHTML("afterbegin", "<p>" + frames.map(
  (frame, at) => PAGES[at] + "=" + frame.contentDocument.documentElement.scrollWidth).join(" ") + "</p>"); };
</script>"""


@pytest.mark.slow
def test_no_page_is_wider_than_a_phone(
    built: Path, browser: str, address: str, tmp_path: Path
) -> None:
    text = FRAMES.replace("PAGES", str(WIDE_PAGES)).replace("WIDTH", str(PHONE))
    (built / "frames.html").write_text(text)
    shown = look(browser, tmp_path, f"{address}/frames.html")
    found = dict(re.findall(r"([\w/-]+)=(\d+)", re.findall(r"<p>([^<]*)</p>", shown)[0]))
    assert sorted(found) == sorted(WIDE_PAGES)
    assert {page: int(width) for page, width in found.items() if int(width) > PHONE} == {}


@pytest.mark.slow
def test_the_search_page_finds_a_method_and_a_setting(
    browser: str, address: str, tmp_path: Path
) -> None:
    assert "api/store.html#penstock.Store.commit_offset" in look(
        browser, tmp_path, f"{address}/search.html?q=commit_offset"
    )
    assert "configuration.html" in look(
        browser, tmp_path, f"{address}/search.html?q=sync_volume_from"
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", ["performance", "configuration"])
def test_pages_and_plots_follow_the_system_into_the_dark(
    page: str, browser: str, address: str, tmp_path: Path
) -> None:
    image = pytest.importorskip("matplotlib.image")
    shades = {}
    for name, scheme in (("dark", 0), ("light", 1)):
        picture = tmp_path / f"{name}.png"
        look(browser, tmp_path / "home", f"{address}/{page}.html", "--window-size=500,4000",
             f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={picture}")  # fmt: skip
        pixels = image.imread(picture)[..., :3]
        assert pixels.std() > 0.05, "the picture is blank"
        shades[name] = [
            float(band.mean()) for band in (pixels[i : i + 200] for i in range(0, len(pixels), 200))
        ]
    assert max(shades["dark"]) < 0.5, "no band of the page stays light in the dark, plots neither"
    assert min(shades["light"]) > 0.5
