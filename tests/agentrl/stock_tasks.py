"""Tasks for stock `agentrl-worker` processes, written as its users write them. Imported there, never here."""

import time
from typing import Any

from agentrl.worker.task import Session, Task
from agentrl.worker.typings import (
    AgentCancelledException,
    RewardHistoryItem,
    SampleIndex,
    SampleStatus,
    TaskSampleExecutionResult,
)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "guess",
            "description": "Says a number.",
            "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
        },
    }
]


class ThreeTurns(Task):
    """Asks three times. The reward is the share of answers with as many characters, modulo 2, as the index."""

    def __init__(self, indices: Any = 20, step_s: float = 0.0, **settings: Any) -> None:
        super().__init__(tools=TOOLS, **settings)
        self._indices: list[SampleIndex] = list(range(indices)) if isinstance(indices, int) else indices
        self._step_s = step_s

    def get_indices(self) -> list[SampleIndex]:
        return self._indices

    def sync_start_sample(self, index: SampleIndex, session: Session) -> TaskSampleExecutionResult:
        return self._play(str(index), session)

    async def start_sample_custom(self, task: dict, session: Session) -> TaskSampleExecutionResult:
        session.inject({"role": "user", "content": f"custom {task}"})
        try:
            await session.action()
        except AgentCancelledException:
            return TaskSampleExecutionResult(status=SampleStatus.CANCELLED)
        session.inject(RewardHistoryItem(reward=1.0, score=0.75, metrics={"custom": True}))
        return TaskSampleExecutionResult(status=SampleStatus.COMPLETED)

    def _play(self, index: str, session: Session) -> TaskSampleExecutionResult:
        session.inject({"role": "system", "content": "You play."})
        session.inject({"role": "user", "content": f"Task {index}: say something."})
        parity, hits = sum(index.encode()) % 2, 0
        try:
            for turn in range(3):
                message = session.sync_action().messages[-1]
                time.sleep(self._step_s)
                hits += len(message.get("content") or "") % 2 == parity
                for call in message.get("tool_calls") or []:
                    session.inject({"role": "tool", "tool_call_id": call["id"], "content": f"heard, turn {turn}"})
                if turn < 2:
                    session.inject({"role": "user", "content": f"Turn {turn} is over."})
        except AgentCancelledException:
            return TaskSampleExecutionResult(status=SampleStatus.CANCELLED)
        session.inject(RewardHistoryItem(reward=hits / 3, score=hits, metrics={"turns": 3}))
        return TaskSampleExecutionResult(status=SampleStatus.COMPLETED)
