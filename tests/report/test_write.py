import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import polars as pl
import pytest

from topr_pipeline.errors import ToprError
from topr_pipeline.report import write_report
from topr_pipeline.report.analysis import BREAKDOWNS
from topr_pipeline.report.curves import Line, curves
from topr_pipeline.report.drawing import VARIABLES
from topr_pipeline.tables import content_hash


class Tags(HTMLParser):
    """Tags with their attributes, and all text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_run):
    folder = tmp_path_factory.mktemp("report")
    write_report(folder, [make_run()])
    return folder


@pytest.fixture(scope="module")
def page(folder):
    return (folder / "report.html").read_text()


def test_report_has_its_files(folder):
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "report.html",
        "report.md",
        "learning_curve.png",
        "plots",
        "scores.parquet",
        "differences.parquet",
        "breakdown.parquet",
        "costs.parquet",
    }
    pictures = list((folder / "plots").iterdir())
    assert {p.suffix for p in pictures} == {".png"}
    assert len(pictures) == (folder / "report.html").read_text().count("<svg")
    assert pl.read_parquet(folder / "breakdown.parquet").schema == BREAKDOWNS.schema


def test_what_a_model_says_is_text_and_no_markup(page):
    found = Tags(page)
    assert "script" not in {tag for tag, _ in found.tags}
    assert found.text.count("<script>alert('x')</script> & \"quoted\"") >= 4


def test_the_page_needs_no_network_and_runs_nothing(page):
    found = Tags(page)
    for tag, attributes in found.tags:
        assert tag not in {"link", "iframe", "object", "embed", "img", "base", "form"}
        for name, value in attributes.items():
            assert not name.startswith("on")
            assert not name.endswith(("href", "src")) or value.startswith("#")
    assert "@import" not in page
    assert re.findall(r"url\((?!#)", page) == []
    assert "default-src 'none'" in page


def test_the_page_is_read_on_a_phone_and_in_the_dark(page):
    tags = Tags(page).tags
    viewports = [a["content"] for tag, a in tags if tag == "meta" and a.get("name") == "viewport"]
    assert viewports == ["width=device-width, initial-scale=1"]
    assert "prefers-color-scheme: dark" in page
    svg = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert "#000000" not in svg, "a colour that stays black in the dark"
    assert not [colour for colour in VARIABLES if colour in svg]
    for variable in VARIABLES.values():
        assert page.count(f"{variable}: ") == 2, "one value in light and one in dark"


def test_ids_of_the_plots_are_their_own_and_are_found(page):
    ids = [a["id"] for _, a in Tags(page).tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {name for name in re.findall(r"url\(#([^)]+)\)", page)} <= set(ids)


def test_equal_runs_give_an_equal_report_but_for_timings(folder, tmp_path, make_run):
    write_report(tmp_path, [make_run()])
    assert content_hash(tmp_path) == content_hash(folder)
    assert (tmp_path / "report.html").read_text() == (folder / "report.html").read_text()
    (tmp_path / "report.html").write_text("other timings")
    assert content_hash(tmp_path) == content_hash(folder)
    (tmp_path / "report.html").unlink()
    assert content_hash(tmp_path) != content_hash(folder)


def test_several_experiments_stand_side_by_side(tmp_path, make_run):
    solved = {k: dict.fromkeys("pqrs", "77") for k in (0, 1)}
    runs = [make_run("one"), make_run("two", solved, mix={"baseline": 0.3})]
    (tmp_path / "mine.txt").write_text("kept")
    text = Tags(write_report(tmp_path, runs).read_text()).text
    assert "one against two" in text
    assert "two, iteration 1" in text
    assert "mix.baseline" in text
    assert (tmp_path / "plots" / "all-paired.png").exists()
    assert (tmp_path / "mine.txt").read_text() == "kept"


def test_a_base_policy_alone_has_a_report(tmp_path, make_run):
    run = make_run(solved={0: dict.fromkeys("pqrs", "75")})
    text = Tags(write_report(tmp_path, [run]).read_text()).text
    assert "pass@1 is 0.500" in text
    assert "Did an iteration help?" not in text


def test_without_scores_nothing_is_written(tmp_path, make_run):
    with pytest.raises(ToprError, match="no eval_scores"):
        write_report(tmp_path / "report", [make_run(solved={})])
    assert not (tmp_path / "report").exists()


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path, make_run):
    (tmp_path / "report").write_text("")
    with pytest.raises(ToprError, match="is a file"):
        write_report(tmp_path / "report", [make_run(solved={0: {"p": "77"}})])


def test_a_plot_is_well_formed_and_says_its_last_values():
    line = Line("<b>", "#2364aa", {0: (0.1, 0.0, 0.2), 1: (0.5, 0.4, 0.6)})
    drawn = curves("it's-one", [line], "Title", "subtitle")
    assert drawn is not None
    root = ET.fromstring(drawn.svg)
    assert "viewBox" in root.attrib
    assert {"width", "height"}.isdisjoint(root.attrib)
    assert "50.0%" in drawn.alt
    assert curves("none", [], "Title", "subtitle") is None


def test_lengths_of_one_token_are_no_shares():
    line = Line("length", "#2364aa", {0: (1.0, 1.0, 1.0)})
    drawn = curves("one", [line], "Length", "tokens", unit="tokens")
    assert drawn is not None
    assert "1.0" in drawn.alt and "%" not in drawn.alt
