"""transformers' `generate` as a process of its own: `python -m benchmarks.engine_transformers FOLDER LOAD DTYPE WAY`.

Plays the sessions of every seed that comes in on a line, and answers with a line of JSON; see `engine_race`. Runs where
torch is installed, and imports nothing of this package.

WAY lockstep: all sessions are one batch, which is turn by turn as long as it is wide, so that nothing is padded; its
cache is kept between turns, and a group's prompt computed once: the best case of a static batch.
WAY continuous: transformers' continuous batching, which keeps prefixes in shared blocks.
"""

import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any

from benchmarks.engine_load import Load

# By name: where torch is not installed, there is nothing for a type checker to find either.
torch, transformers = import_module("torch"), import_module("transformers")

Play = Callable[[int], int]
_PAGE_TOKENS = 16


@contextmanager
def lockstep(model: Any, load: Load) -> Any:
    """Plays the sessions of a seed and returns the number of sampled ids."""
    vocab_size = model.config.vocab_size
    settings = transformers.GenerationConfig(
        **_sampling(load), min_new_tokens=load.new_tokens, eos_token_id=None, return_dict_in_generate=True
    )

    def play(seed: int) -> int:
        prompts = torch.from_numpy(load.prompts(seed, vocab_size))
        replies = torch.from_numpy(load.replies(seed, vocab_size))
        cache = transformers.DynamicCache(config=model.config)
        with torch.inference_mode():
            model(input_ids=prompts[:, :-1], past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache.batch_repeat_interleave(load.group)
            ids, sampled = prompts.repeat_interleave(load.group, 0), 0
            for turn in range(load.turns):
                mask = torch.ones_like(ids)
                done = model.generate(ids, attention_mask=mask, past_key_values=cache, generation_config=settings)
                sampled += done.sequences.numel() - ids.numel()
                cache, ids = done.past_key_values, torch.cat([done.sequences, replies[:, turn]], 1)
        return sampled

    yield play


@contextmanager
def continuous(model: Any, load: Load) -> Any:
    """Plays the sessions of a seed and returns the number of sampled ids."""
    vocab_size = model.config.vocab_size
    batching = import_module("transformers.generation.configuration_utils").ContinuousBatchingConfig(
        page_size=_PAGE_TOKENS,
        num_blocks=2 * load.sessions * (load.longest // _PAGE_TOKENS + 1),
        max_batch_tokens=2048,
        max_requests_per_batch=load.sessions,
        seed=0,
    )
    settings = transformers.GenerationConfig(**_sampling(load), eos_token_id=-1)
    blocks: AbstractContextManager[Any] = model.continuous_batching_context_manager(
        generation_config=settings, continuous_batching_config=batching
    )
    with torch.no_grad(), blocks as manager:

        def play(seed: int) -> int:
            prompts, replies = load.prompts(seed, vocab_size), load.replies(seed, vocab_size)
            ids = [prompts[number // load.group].tolist() for number in range(load.sessions)]
            turns, sampled = [0] * load.sessions, 0

            def ask(number: int) -> None:
                name = f"{seed}-{number}-{turns[number]}"
                manager.add_request(ids[number], request_id=name, max_new_tokens=load.new_tokens)

            for number in range(load.sessions):
                ask(number)
            while min(turns) < load.turns:
                result = manager.get_result(timeout=60)
                if result is None or result.error:
                    raise RuntimeError(f"continuous batching failed: {result and result.error}")
                if not result.is_finished():
                    continue
                number = int(result.request_id.split("-")[1])
                ids[number] += [*result.generated_tokens, *replies[number, turns[number]].tolist()]
                sampled += len(result.generated_tokens)
                turns[number] += 1
                if turns[number] < load.turns:
                    ask(number)
            return sampled

        yield play


def _sampling(load: Load) -> dict[str, Any]:
    return {
        "max_new_tokens": load.new_tokens,
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "pad_token_id": 0,
    }


def main(folder: str, load: Load, dtype: str, way: str) -> None:
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    ways: dict[str, Callable[[Any, Load], AbstractContextManager[Play]]] = {
        "lockstep": lockstep,
        "continuous": continuous,
    }
    with ways[way](model, load) as play:
        print("{}", flush=True)
        for line in sys.stdin:
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            sampled = play(int(line))
            cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
            print(json.dumps({"cpu_s": cpu_s, "wall_s": wall_s, "sampled_tokens": sampled}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Load.from_json(sys.argv[2]), sys.argv[3], sys.argv[4])
