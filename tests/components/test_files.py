"""Files that Dagster would take silently or answer with a stack trace."""

import pytest

from topr_pipeline.components.files import check_files
from topr_pipeline.errors import ToprError

GOOD = "type: topr_pipeline.components.TOPRExperiment\nattributes:\n  iterations: 2\n"

WRONG = [
    ("", "is empty"),
    ("# only a word\n", "is empty"),
    ("type: x\n", "no key attributes"),
    ("- a\n- b\n", "no key attributes and type"),
    (GOOD + "  iterations: 3\n", "defs.yaml:4: the key 'iterations' stands twice"),
    (GOOD + "---\n" + GOOD, "2 documents"),
    (GOOD + "  a: [1\n", "not YAML"),
    (GOOD + "\ta: 1\n", "defs.yaml:4: not YAML"),
]


@pytest.mark.parametrize(("text", "said"), WRONG, ids=[w[1] for w in WRONG])
def test_a_file_that_is_no_experiment_is_refused_with_its_place(write_project, text, said):
    with pytest.raises(ToprError) as error:
        check_files(write_project(mine=text))
    assert said in str(error.value)
    assert "mine/defs.yaml" in str(error.value)


def test_a_good_file_is_accepted(write_project):
    check_files(write_project(mine=GOOD, other=GOOD))


def test_a_file_that_is_not_utf8_is_refused(write_project):
    root = write_project(mine=GOOD)
    (file,) = root.rglob("defs.yaml")
    file.write_bytes(GOOD.encode("utf-16"))
    with pytest.raises(ToprError, match="not UTF-8"):
        check_files(root)


@pytest.mark.parametrize("name", ["my-exp", "my exp", "1st", "caf\u00e9"])
def test_a_folder_whose_name_cannot_be_an_experiments_is_refused(write_project, name):
    with pytest.raises(ToprError, match="letters, digits and _ are accepted"):
        check_files(write_project(**{name: GOOD}))


def test_a_name_that_stands_twice_is_refused_with_both_places(write_project):
    root = write_project(**{"a/tiny": GOOD, "b/tiny": GOOD})
    with pytest.raises(ToprError, match=r"a/tiny/defs.yaml, .*b/tiny/defs.yaml"):
        check_files(root)


def test_a_project_without_experiments_says_what_to_write(write_project):
    with pytest.raises(ToprError, match="write assets/"):
        check_files(write_project())
