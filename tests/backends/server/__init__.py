"""A server of chat completions on a real socket of this machine, for tests.

It speaks each engine's documented wire (`dialects`), or says what it is told to (`scripts`), every
known fault of real servers among it (`faulty`). It keeps what it was sent and counts who is there.

    async with serving(dialect("sglang-dllm")) as server:
        backend = connect(f"openai:{server.url}#tiny", profile="sglang-dllm")
"""

from tests.backends.server.dialects import dialect
from tests.backends.server.sockets import Listening, Received, serving, until

__all__ = ["Listening", "Received", "dialect", "serving", "until"]
