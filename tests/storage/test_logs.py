"""What commands of a sweep write: read from regular files only, whatever a model or plugin prints among it."""

import json
from pathlib import Path

import pytest

from irregular import IRREGULAR, time_limit
from wmr_cli.errors import BadFile
from wmr_cli.storage import logs


@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
def test_only_a_regular_file_is_read(make):
    make(Path("log"))
    with time_limit(60):
        assert logs.tail(Path("log"), 0) == []
        with pytest.raises(BadFile, match=r"it is a folder|not a regular file") as refused:
            logs.record_ids(Path("log"))
    assert refused.value.hint


def test_the_ids_of_a_list_are_found_among_other_output():
    Path("out").write_text("loading [ok]\n" + json.dumps([{"id": "a"}, {"id": "b"}]) + "\ndone")
    assert logs.record_ids(Path("out")) == ["a", "b"]


@pytest.mark.parametrize("text", ["", "[" * 3000, '[{"id": 3}]', '[{"id": ["a"]}]', '["a"]', "[]"])
def test_output_without_a_list_of_records_is_refused(text):
    Path("out").write_text(text)
    with time_limit(60), pytest.raises(BadFile, match="lists no records") as refused:
        logs.record_ids(Path("out"))
    assert refused.value.hint


def test_the_tail_of_a_log_is_limited():
    Path("log").write_text("x\n" * logs.TAIL)
    assert len(logs.tail(Path("log"), 0)) == logs.TAIL // 2
