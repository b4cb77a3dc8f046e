"""TOK-06, where policies are evaluated: whoever meets other prompts than it was trained with is said to."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from agentrl_jax.engines.local.config import LocalEngineConfig
from agentrl_jax.env import FamilyOptions
from agentrl_jax.models.params import init_params
from agentrl_jax.models.save import save_pretrained
from agentrl_jax.rendering.config import HistoryThinking, RenderingConfig, write_rendering
from agentrl_jax.sharding import make_mesh, parse_mesh
from agentrl_jax.testing.tokenizers import write_toy_tokenizer
from envs.knowledge_graph import family
from launch.evaluate_config import EvaluateConfig
from launch.evaluate_policies import open_policies
from launch.evaluate_sources import find_sources
from tests.faults.served_policy import serving
from tests.launch.engine_process import MODEL

LOCAL = LocalEngineConfig(num_slots=2, prefill_shapes=((2, 16),))


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A folder whose template rewrites earlier thinking, and whose policy was trained with all of it."""
    write_toy_tokenizer(tmp_path / "tokenizer", "qwen3")
    folder = tmp_path / "policy"
    save_pretrained(init_params(MODEL, 0), MODEL, folder, dtype="float32", source=tmp_path / "tokenizer")
    write_rendering(folder, RenderingConfig(history_thinking="keep"))
    return folder


@pytest.mark.parametrize("is_served", [False, True])
@pytest.mark.parametrize("history", ["strip", "keep"])
async def test_tok_06_an_evaluation_with_another_history_than_in_training_says_so(
    history: HistoryThinking, is_served: bool, policy: Path
) -> None:
    said: list[str] = []
    async with AsyncExitStack() as stack:
        engines = [f"sglang:{await stack.enter_async_context(serving(policy))}"] if is_served else []
        models = [] if is_served else [policy]
        config = EvaluateConfig(
            model=tuple(models),
            engine=tuple(engines),
            rendering=RenderingConfig(history_thinking=history),
            max_context_tokens=64,
            local=LOCAL,
        )
        sources = find_sources(models, engines, False, ["p"])
        families = [family(FamilyOptions())]
        await stack.enter_async_context(
            open_policies(sources, families, config, make_mesh(parse_mesh("1")), said.append)
        )
    warning = "p: warning: the policy was trained with history_thinking = keep, and meets history_thinking = strip now"
    assert (warning in said) == (history == "strip")
    assert config.settings({})["rendering"]["history_thinking"] == history  # what results.json shows
