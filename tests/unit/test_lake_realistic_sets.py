"""Specs inferred from realistic data are green on that data."""

import pytest
from realistic_sets import SETS

from gazette_platform.lake.inference.infer import infer_spec
from gazette_platform.lake.raw.audits.fit import value_scanner
from gazette_platform.lake.reading.sample_check import check_sample
from gazette_platform.lake.typed.rows.parsing import BlockParser


@pytest.mark.parametrize("name", SETS)
def test_inferred_spec_fits_all_records(name):
    data = SETS[name]
    found = infer_spec(f"sets.{name}", f"name:prefix=sets/{name}/", data.lines)
    check_sample(found.spec, data.content, "here")
    scanner = value_scanner(found.spec)
    scanner.feed(data.content)
    report = scanner.report()
    assert (report.columns, report.lines) == ({}, {})
    types = {column.name: column.type for column in found.spec.columns}
    for column, begins in data.types.items():
        assert types[column].startswith(begins), (column, types[column])


@pytest.mark.parametrize("name", [name for name, data in SETS.items() if data.format == "json"])
def test_inferred_typed_table_sets_no_record_aside(name):
    data = SETS[name]
    found = infer_spec(f"sets.{name}", f"name:prefix=sets/{name}/", data.lines, is_typed=True)
    assert not any("quarantine" in remark for remark in found.remarks)
    assert BlockParser(found.spec.typed).parse(0, data.content).bad == ()
