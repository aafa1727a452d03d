"""A stand-in for llama-server that answers like a sound one, or with one planted fault.

It has no model: a token is a byte, and each next token is a hash of all tokens before it, so an
answer depends on its own prompt and on nothing else, as BATCHING.md demands of an engine. Chat
questions of the kinds that the checks ask are answered by pattern.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "stub-key"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is wrong with the stub; every field's default means nothing is.

    Args:
        previous_every: each n-th request gets the answer of the request before it (case 49).
        slashes_after: from that many requests on, every answer is a run of slashes (case 49).
        first_subject: a prompt of the same first word gets the first such prompt's answer (case 52).
        broken_tools: that many tool calls after a start have broken JSON (case 52).
        empty_every: each n-th answer is empty.
        closes: /health is good, but every request finds its connection closed, and the server is
            away for that many seconds afterwards (case 21).
        overrun_at: with so many requests at once all of them fail with the pool's error (case 46).
        drafts_kept: drafts kept of 370 drafted (case 52).
        cut_stream: streams end without their end mark.
        wrong_city: the capital of France is another one.
        lossy: the tokenizer loses what is not ASCII.
        still_metrics: the counters do not move.
    """

    previous_every: int = 0
    slashes_after: int = 0
    first_subject: bool = False
    broken_tools: int = 0
    empty_every: int = 0
    closes: float = 0.0
    overrun_at: int = 0
    drafts_kept: int | None = None
    cut_stream: bool = False
    wrong_city: bool = False
    lossy: bool = False
    still_metrics: bool = False


@dataclass
class Stub:
    """A running stub: its address, and what it saw."""

    fault: Fault
    slots: int
    context: int
    key: str | None
    url: str = ""
    requests: int = 0
    running: int = 0
    tool_calls: int = 0
    starts: int = 1
    away_until: float = 0.0
    last: str = ""
    subjects: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def spoil(self, subject: str, answer: str) -> str:
        """Count a request, and turn its right answer into what the fault makes of it."""
        fault = self.fault
        with self.lock:
            self.requests += 1
            number, previous, self.last = self.requests, self.last, answer
            first = self.subjects.setdefault(subject, answer)
        if fault.slashes_after and number > fault.slashes_after:
            return "/" * max(len(answer), 8)
        if fault.previous_every and number % fault.previous_every == 0:
            return previous
        if fault.empty_every and number % fault.empty_every == 0:
            return ""
        return first if fault.first_subject else answer


def continuation(tokens: Sequence[int], length: int) -> list[int]:
    """The tokens that follow a prompt: printable bytes, each a hash of everything before it."""
    state = hashlib.sha256(bytes(token % 256 for token in tokens)).digest()
    made = []
    for _ in range(length):
        made.append(0x21 + state[0] % 94)
        state = hashlib.sha256(state + bytes(made[-1:])).digest()
    return made


def answer_to(text: str, *, wrong_city: bool = False) -> str:
    """The reply to a chat question."""
    if "capital of France" in text:
        return "Lyon" if wrong_city else "The capital of France is Paris."
    for pattern in (r"exactly: (\S+)", r"code word is (\w+)", r"^(\w+)\b.*first word"):
        if found := re.search(pattern, text, re.DOTALL):
            return found.group(1)
    return "I do not know."


@contextmanager
def stub_engine(
    fault: Fault | None = None, *, slots: int = 4, context: int = 4096, key: str | None = None
) -> Iterator[Stub]:
    """Run a stub on a free port of loopback until the block ends."""
    stub = Stub(fault=fault or Fault(), slots=slots, context=context, key=key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(stub))
    server.daemon_threads = True
    stub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(stub: Stub) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        engine = stub

    return Handler


class _Handler(BaseHTTPRequestHandler):
    engine: Stub
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Stay quiet."""

    def do_GET(self) -> None:
        if self._away():
            return
        routes = {"/health": self._health, "/props": self._props, "/metrics": self._metrics,
                  "/slots": self._slots, "/v1/models": self._models}  # fmt: skip
        if self.path != "/health" and self._locked():
            return
        routes.get(self.path, self._unknown)()

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length) or b"{}")
        if self._away() or self._locked():
            return
        routes = {"/tokenize": self._tokenize, "/detokenize": self._detokenize,
                  "/completion": self._complete, "/v1/chat/completions": self._chat}  # fmt: skip
        handle = routes.get(self.path)
        if handle is None:
            self._unknown()
            return
        with self.engine.lock:
            self.engine.running += 1
        try:
            handle(body)
        finally:
            with self.engine.lock:
                self.engine.running -= 1

    # --- faults of the connection

    def _away(self) -> bool:
        away = time.monotonic() < self.engine.away_until
        if away:
            self.close_connection = True
        return away

    def _dies(self) -> bool:
        if not self.engine.fault.closes:
            return False
        self.engine.away_until = time.monotonic() + self.engine.fault.closes
        self.engine.starts += 1
        self.close_connection = True
        return True

    def _locked(self) -> bool:
        key = self.engine.key
        if key is None or self.headers.get("Authorization") == f"Bearer {key}":
            return False
        self._fail(401, "authentication_error", "Invalid API Key")
        return True

    def _overrun(self) -> bool:
        if not self.engine.fault.overrun_at:
            return False
        time.sleep(0.3)
        if self.engine.running < self.engine.fault.overrun_at:
            return False
        self._fail(500, "server_error", "Context size has been exceeded.")
        return True

    # --- endpoints

    def _health(self) -> None:
        self._json(200, {"status": "ok"})

    def _props(self) -> None:
        self._json(200, {
            "default_generation_settings": {"n_ctx": self.engine.context}, "total_slots": self.engine.slots,
            "model_alias": "stub", "model_path": "/models/stub.gguf", "build_info": "b11434-stub",
            "chat_template": "", "is_sleeping": False, "model_ftype": "F16",
        })  # fmt: skip

    def _slots(self) -> None:
        self._json(200, [{"id": index, "n_ctx": self.engine.context} for index in range(self.engine.slots)])

    def _models(self) -> None:
        self._json(200, {"data": [{"id": "stub", "meta": {"n_vocab": 256, "n_ctx_train": 8192}}]})

    def _metrics(self) -> None:
        count = 0 if self.engine.fault.still_metrics else self.engine.requests
        names = ("prompt_tokens_total", "tokens_predicted_total")
        self._send(200, "text/plain", "".join(f"llamacpp:{name} {count}\n" for name in names))

    def _tokenize(self, body: dict[str, Any]) -> None:
        self._json(200, {"tokens": list(body["content"].encode())})

    def _detokenize(self, body: dict[str, Any]) -> None:
        data = bytes(body["tokens"])
        self._json(200, {"content": data.decode("ascii" if self.engine.fault.lossy else "utf-8", "replace")})

    def _complete(self, body: dict[str, Any]) -> None:
        prompt = body.get("prompt")
        if prompt is None or any(isinstance(token, int) and token > 255 for token in prompt):
            self._fail(400, "invalid_request_error", "key 'prompt' not found, or it has invalid tokens")
            return
        tokens = list(prompt.encode()) if isinstance(prompt, str) else list(prompt)
        if self._dies() or self._too_long(len(tokens)) or self._overrun():
            return
        if "json_schema" in body:
            self._json(200, self._completion(tokens, list(b'{"ready": true, "colour": "red"}'), 0))
            return
        right = bytes(continuation(tokens, body["n_predict"])).decode()
        made = list(self.engine.spoil(str(tokens[:8]), right).encode())
        answer = self._completion(tokens, made, body.get("n_probs", 0))
        if body.get("stream"):
            pieces = [{"content": chr(token), "tokens": [token], "stop": False} for token in made]
            end = [] if self.engine.fault.cut_stream else [{**answer, "content": "", "tokens": []}]
            self._events([*pieces, *end])
        else:
            self._json(200, answer)

    def _completion(self, prompt: list[int], made: list[int], probs: int) -> dict[str, Any]:
        timings: dict[str, float] = {"prompt_n": len(prompt), "cache_n": 0, "predicted_n": len(made)}
        if self.engine.fault.drafts_kept is not None:
            timings |= {"draft_n": 370, "draft_n_accepted": self.engine.fault.drafts_kept}
        answer: dict[str, Any] = {
            "content": bytes(made).decode(), "tokens": made, "id_slot": 0, "stop_type": "limit",
            "stop": True, "timings": timings,
        }  # fmt: skip
        if probs:
            answer["completion_probabilities"] = [
                {"id": token, "top_logprobs": [{"id": token, "logprob": math.log(0.9)}]} for token in made
            ]
        return answer

    def _chat(self, body: dict[str, Any]) -> None:
        if self._dies() or self._overrun():
            return
        if not isinstance(body["messages"], list):
            self._fail(400, "invalid_request_error", "Expected 'messages' to be an array")
            return
        text = body["messages"][-1]["content"]
        if self._too_long(len(text)):
            return
        if body.get("tools"):
            self._json(200, self._tool_call(body["tools"][0]["function"]["name"]))
            return
        right = answer_to(text, wrong_city=self.engine.fault.wrong_city)
        made = self.engine.spoil(text.split()[0], right)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": made}}
        if body.get("stream"):
            pieces = [{"choices": [{"index": 0, "delta": {"content": letter}}]} for letter in made]
            self._events([*pieces, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}])
        else:
            self._json(200, {"choices": [choice], "timings": {"predicted_per_second": 1000.0}})

    def _tool_call(self, name: str) -> dict[str, Any]:
        with self.engine.lock:
            self.engine.tool_calls += 1
            broken = self.engine.tool_calls <= self.engine.fault.broken_tools
        arguments = '{"city": "Par' if broken else '{"city": "Paris"}'
        call = {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return {"choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}], "timings": {}}

    def _too_long(self, length: int) -> bool:
        context = self.engine.context
        if length < context:
            return False
        error = {
            "code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": length, "n_ctx": context,
            "message": f"request ({length} tokens) exceeds the available context size ({context} tokens)",
        }  # fmt: skip
        self._json(400, {"error": error})
        return True

    def _unknown(self) -> None:
        self._fail(404, "not_found_error", "File Not Found")

    # --- sending

    def _fail(self, code: int, kind: str, message: str) -> None:
        self._json(code, {"error": {"code": code, "type": kind, "message": message}})

    def _json(self, code: int, value: Any) -> None:
        self._send(code, "application/json", json.dumps(value))

    def _send(self, code: int, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _events(self, events: Sequence[dict[str, Any]]) -> None:
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        if not self.engine.fault.cut_stream:
            lines.append("data: [DONE]\n\n")
        self._send(200, "text/event-stream", "".join(lines))
