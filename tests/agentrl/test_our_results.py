"""Results of `launch.evaluate` as `agentrl-eval` itself reads them."""

import json
import subprocess
from pathlib import Path

import pytest

from agentrl_jax.playing.agentrl_files import write_agentrl_files
from tests.playing.world import record

pytestmark = pytest.mark.agentrl

READ = """
import asyncio, json, sys
from pathlib import Path
from agentrl.eval.session.metric import Metric
from agentrl.eval.session.types import MetricType
from agentrl.eval.store.store import ResultStore

async def main():
    store = ResultStore(Path(sys.argv[1]), resume=True)
    done = await store.completed()
    metrics = await store.metrics(Metric(MetricType.SUCCESS_RATE))
    print(json.dumps([len(store.results), sorted(done), [m.model_dump() for m in metrics]]))

asyncio.run(main())
"""


def test_the_stock_package_reads_our_results(stock_python: Path, tmp_path: Path) -> None:
    episodes = [record(solved=bool(index), index=index, sample=s) for index in range(2) for s in range(2)]
    write_agentrl_files([*episodes, record(None, index=2)], tmp_path)
    done = subprocess.run([stock_python, "-c", READ, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    num_rows, finished, (found,) = json.loads(done.stdout)
    assert num_rows == 5
    assert finished == ["m:a:0:0", "m:a:0:1", "m:a:1:0", "m:a:1:1"]
    assert (found["model"], found["task"], found["valid"], found["avg"]) == ("m", "a", 4, 0.5)
