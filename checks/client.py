"""A typed door to a llama-server: what its endpoints answer, as values."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import requests

import web

Body = Mapping[str, Any]
Prompt = str | Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One HTTP answer: its status and its body, parsed where it is JSON."""

    status: int
    body: Any
    text: str

    @property
    def error(self) -> Mapping[str, Any]:
        """The server's error object, empty where there is none."""
        found = self.body.get("error") if isinstance(self.body, dict) else None
        return found if isinstance(found, dict) else {}

    @property
    def message(self) -> str:
        """The server's own words about an error, else the start of the body."""
        return str(self.error.get("message") or self.text[:200].strip() or "an empty body")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One generated token: its id and the log-probabilities of the likeliest tokens at its place."""

    token: int
    top: Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What `/completion` answered.

    `steps` holds log-probabilities where they were asked for; llama-server leaves them out for
    tokens that came from an accepted draft. `timings` has prompt_n, cache_n, predicted_n and,
    where something was drafted, draft_n and draft_n_accepted.
    """

    content: str
    tokens: tuple[int, ...]
    steps: tuple[Step, ...]
    slot: int
    stop: str
    timings: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def drafted(self) -> int:
        """Number of tokens that were drafted."""
        return int(self.timings.get("draft_n", 0))

    @property
    def accepted(self) -> int:
        """Number of drafted tokens that were kept."""
        return int(self.timings.get("draft_n_accepted", 0))


@dataclass(frozen=True, kw_only=True)
class Chat:
    """One chat answer: text, thinking, tool calls as the server sent them, and how it ended."""

    content: str
    reasoning: str
    tool_calls: tuple[Mapping[str, Any], ...]
    finish: str
    chunks: int
    """Streamed pieces that carried text; 0 for an answer in one piece."""
    done: bool
    """Whether a stream ended with its end mark."""
    timings: Mapping[str, float]


class Refused(Exception):
    """The server answered with an error where an answer was asked for."""

    def __init__(self, path: str, reply: Reply) -> None:
        super().__init__(f"{path} answered {reply.status}: {reply.message}")
        self.reply = reply


Unreachable = requests.RequestException
"""What every call raises when the connection fails, is closed early, or is too slow."""


class Client:
    """Talks to one llama-server.

    Args:
        url: its root, as in http://127.0.0.1:8080.
        key: API key, sent as a bearer token; None sends none.
        timeout: seconds for one answer.
    """

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 300.0) -> None:
        self.url = url.rstrip("/")
        self.key = key
        self._timeout = timeout
        self._headers = {"Connection": "close"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def get(self, path: str) -> Reply:
        """GET a path; any status is an answer."""
        with self._session() as session:
            return _reply(session.get(self.url + path, timeout=self._timeout))

    def post(self, path: str, body: Body, *, headers: Mapping[str, str | None] | None = None) -> Reply:
        """POST a JSON body; any status is an answer. A header set to None is not sent."""
        sent: dict[str, Any] = dict(headers or {})
        with self._session() as session:
            return _reply(session.post(self.url + path, json=body, headers=sent, timeout=self._timeout))

    def ask(self, path: str, body: Body | None = None) -> Any:
        """The JSON body of a good answer.

        Raises:
            Refused: the status is not 200.
        """
        reply = self.get(path) if body is None else self.post(path, body)
        if reply.status != 200:
            raise Refused(path, reply)
        return reply.body

    def healthy(self) -> bool:
        """Whether /health says ok now; no server at all counts as no."""
        try:
            return self.get("/health").status == 200
        except Unreachable:
            return False

    def complete(self, prompt: Prompt, tokens: int, *, probs: int = 0, **options: Any) -> Completion:
        """Continue a prompt greedily by at most `tokens` tokens.

        Args:
            prompt: text, or token ids.
            tokens: limit on generated tokens; a model's end of text does not end it.
            probs: how many of the likeliest tokens to report at each place.
            options: further fields of the request, such as id_slot or cache_prompt.
        """
        body = {
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "n_predict": tokens, "n_probs": probs,
            "temperature": 0, "seed": 1, "cache_prompt": False, "ignore_eos": True, "return_tokens": True,
            **options,
        }  # fmt: skip
        return _completion(self.ask("/completion", body))

    def chat(self, text: str, *, tokens: int = 1024, stream: bool = False, **options: Any) -> Chat:
        """One greedy user turn, with thinking switched off where the template knows how."""
        body = {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": tokens, "temperature": 0, "seed": 1,
            "chat_template_kwargs": {"enable_thinking": False}, **options,
        }  # fmt: skip
        if stream:
            return self._streamed_chat({**body, "stream": True, "stream_options": {"include_usage": True}})
        answer = self.ask("/v1/chat/completions", body)
        choice = answer["choices"][0]
        return Chat(
            content=choice["message"].get("content") or "",
            reasoning=choice["message"].get("reasoning_content") or "",
            tool_calls=tuple(choice["message"].get("tool_calls") or ()),
            finish=choice["finish_reason"] or "",
            chunks=0, done=True, timings=answer.get("timings", {}),
        )  # fmt: skip

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens added."""
        return [int(token) for token in self.ask("/tokenize", {"content": text})["tokens"]]

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of token ids."""
        return str(self.ask("/detokenize", {"tokens": list(tokens)})["content"])

    def metrics(self) -> dict[str, float]:
        """The server's counters and gauges by name, without prefix; labels stay part of the name."""
        reply = self.get("/metrics")
        if reply.status != 200:
            raise Refused("/metrics", reply)
        return parse_metrics(reply.text)

    def _streamed_chat(self, body: Body) -> Chat:
        parts: list[str] = []
        thoughts: list[str] = []
        finish, done = "", False
        timings: Mapping[str, float] = {}
        for event in self.events("/v1/chat/completions", body):
            if event is None:
                done = True
                continue
            timings = event.get("timings", timings)
            for choice in event.get("choices", ()):
                delta = choice.get("delta", {})
                parts += [delta["content"]] if delta.get("content") else []
                thoughts += [delta["reasoning_content"]] if delta.get("reasoning_content") else []
                finish = choice.get("finish_reason") or finish
        return Chat(
            content="".join(parts), reasoning="".join(thoughts), tool_calls=(), finish=finish,
            chunks=len(parts) + len(thoughts), done=done, timings=timings,
        )  # fmt: skip

    def events(self, path: str, body: Body) -> Iterator[dict[str, Any] | None]:
        """The events of a stream as they come; None stands for the end mark."""
        with (
            self._session() as session,
            session.post(self.url + path, json=body, stream=True, timeout=self._timeout) as answer,
        ):
            if answer.status_code != 200:
                raise Refused(path, _reply(answer))
            for line in answer.iter_lines():
                if line.startswith(b"data: "):
                    data = line[6:].decode()
                    yield None if data == "[DONE]" else json.loads(data)

    def _session(self) -> requests.Session:
        """A session of one request. llama-server closes idle connections after 5 s, and one that it
        closes while it is taken up again would look like a server that went away."""
        session = web.session(pool=1, local=True)
        session.headers.update(self._headers)
        return session


def wait_until_healthy(client: Client, *, timeout: float) -> bool:
    """Wait for /health to say ok; False when `timeout` seconds have passed."""
    end = time.monotonic() + timeout
    while not client.healthy():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def parse_metrics(text: str) -> dict[str, float]:
    """Read the Prometheus text format.

    >>> parse_metrics("# HELP x y\\nllamacpp:n_decode_total 7\\n")
    {'n_decode_total': 7.0}
    """
    lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name.removeprefix("llamacpp:"): float(value) for name, _, value in lines}


def _reply(answer: requests.Response) -> Reply:
    try:
        body = answer.json()
    except ValueError:
        body = None
    return Reply(status=answer.status_code, body=body, text=answer.text)


def _completion(body: Any) -> Completion:
    steps = tuple(
        Step(token=int(entry["id"]), top={int(top["id"]): top["logprob"] for top in entry["top_logprobs"]})
        for entry in body.get("completion_probabilities", ())
    )
    return Completion(
        content=body["content"],
        tokens=tuple(int(token) for token in body.get("tokens", ())),
        steps=steps,
        slot=int(body.get("id_slot", -1)),
        stop=body.get("stop_type", ""),
        timings=body.get("timings", {}),
    )
