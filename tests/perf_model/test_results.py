"""The committed predictions: of the kernels as they are, in the documents as they are."""

from __future__ import annotations

import json

import pytest

from fa_triton.compile.source import source_hash
from fa_triton.variants import variant_of_key
from perf.model.candidates.vector_form import vector_variant
from perf.model.command import RESULTS
from perf.model.costs import SETS
from perf.model.decode import DecodeCase, cases, decode_line
from perf.model.tables import DOCUMENTS, markers, table

LINES = [json.loads(line) for line in RESULTS.read_text().splitlines()]
RENEW = "python -m perf.run model"


def decode_lines(**wanted):
    return [
        line
        for line in LINES
        if line["kind"] == "decode" and all(line[name] == wanted[name] for name in wanted)
    ]


def test_every_case_is_there():
    assert len(decode_lines()) == len(list(cases()))
    kernels = {line["kernel"] for line in LINES if line["kind"] == "kda"}
    assert len(kernels) == 10


def test_predictions_are_of_the_kernels_as_they_are():
    hashes = {}
    for line in LINES:
        name = line["key"].partition("-")[0]
        if name not in hashes:
            is_candidate = name == "vector_decode"
            variant = vector_variant(64, 64) if is_candidate else variant_of_key(line["key"])
            hashes[name] = source_hash(variant.resolve())
        assert line["source"] == hashes[name], f"{name} changed: {RENEW}"


@pytest.mark.parametrize(
    ("document", "name"), [(path, name) for path, names in DOCUMENTS.items() for name in names]
)
def test_documents_have_these_predictions(document, name, repo_root):
    begin, end = markers(name)
    text = (repo_root / document).read_text()
    assert text.partition(begin)[2].partition(end)[0].strip() == table(name, LINES), RENEW


@pytest.mark.compile
@pytest.mark.parametrize(
    "case",
    [
        DecodeCase("A2", 64, 8, "16 bit", "cube"),
        DecodeCase("A5", 64, 8, "int8 per channel", "cast"),
    ],
)
def test_a_prediction_can_be_repeated(case):
    (line,) = decode_lines(**{name: getattr(case, name) for name in case.__dataclass_fields__})
    found = json.loads(json.dumps(decode_line(case)))
    assert found == {name: line[name] for name in found}


def test_counts_agree_with_what_the_shapes_say():
    for line in decode_lines():
        bits = 16 if line["cache"] == "16 bit" else 8
        per_key = 2 * line["head_dim"] * bits // 8
        # fp32 scales of K and V, read by both vector cores
        per_key += 16 if line["cache"] == "int8 per token" else 0
        read = line["counted"]["caller_read"]
        assert read == per_key * line["unit_keys"], line["key"]
        assert line["counted"].get("caller_written", 0) == 0
        if line["form"] != "vector":
            products = 2 if line["form"] == "terms" else 1
            step = 16 * 16 * 32 // (1 if line["form"] == "terms" else 2)
            macs = 2 * 16 * line["head_dim"] * line["unit_keys"] * products
            assert line["counted"]["cube_steps"] == macs / step, line["key"]
        # both are rounded
        assert min(line["predicted"]["memory"].values()) >= line["floor"] - 0.1


@pytest.mark.parametrize("dim", [64, 128])
def test_the_vector_form_loses_on_a2_as_the_document_says(dim):
    (cube,) = decode_lines(target="A2", group=1, head_dim=dim, form="cube", tile_keys=0)
    (vector,) = decode_lines(target="A2", group=1, head_dim=dim, form="vector")
    for source in ("memory", "cache"):
        ratios = [vector["predicted"][source][s] / cube["predicted"][source][s] for s in SETS]
        assert min(ratios) > 1.5
    # even if nothing but its vector instructions took time
    nominal = vector["predicted"]["memory"]["nominal"]
    assert vector["busy"]["vector0"]["V"] * nominal > cube["predicted"]["memory"]["nominal"]
