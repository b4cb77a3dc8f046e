"""The bars of WebShop and the knowledge graph, by half."""

import pytest

from benchmarks import envs_knowledgegraph, envs_webshop
from benchmarks.env_cases import CaseOptions


@pytest.mark.data
def test_webshop_keeps_half_its_bar(data_folder):
    values = envs_webshop.measure(CaseOptions(data=data_folder, is_quick=True))
    assert values["steps_per_cpu_s"] >= 9000 / 2
    assert values["kb_per_live_session"] <= 10
    assert values["catalogue_mb"] <= 30


@pytest.mark.data
def test_a_gold_program_takes_less_than_twice_its_bar(data_folder):
    values = envs_knowledgegraph.measure(CaseOptions(data=data_folder, is_quick=True))
    assert values["gold_ms"] <= 2 * 1.0


@pytest.mark.parametrize("module", [envs_webshop, envs_knowledgegraph])
def test_a_case_is_measured_without_data_and_gives_its_metrics(module):
    (case,) = module.CASES
    assert case.measure(CaseOptions(data=None, is_quick=True)).keys() == case.units.keys()
